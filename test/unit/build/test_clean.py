# SPDX-License-Identifier: Apache-2.0
"""clean and uninstall: what goes, what stays, how much it frees, and when they refuse."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from sglang_fork.build import clean
from sglang_fork.build.stamp import Stamp, build_lock, write_stamp
from sglang_fork.cli import main
from sglang_fork.launch import process, record
from sglang_fork.lock import FOLDER, RUNTIME
from sglang_fork.paths import ROOT
from sglang_fork.stack import workspace
from sglang_fork.stack.series import read_series
from sglang_fork.stack.wheel import sha256

VERSION = read_series(ROOT / "patches").version
FORK = f"{VERSION}+mega.3.gnow"
KIB = 1 << 10


def fill(path: Path, kib: int = 64) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(os.urandom(kib * KIB))
    return path


def built(state: Path, profile: str, lock: str = "", fork: str = FORK) -> Path:
    """An environment whose build came to an end."""
    fill(state / f"venv-{profile}/lib/torch.so")
    lock = lock or sha256(FOLDER / RUNTIME)
    write_stamp(Stamp(profile, fork, lock, "cp312", "x86_64"))
    return state / f"venv-{profile}"


def say(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(list(words)) == code
    captured = capsys.readouterr()
    return captured.err if code else captured.out


@pytest.fixture
def used(state: Path) -> tuple[set[Path], set[Path]]:
    """A state folder after some releases: what a current environment needs, and what none does."""
    state.mkdir()
    keep = {
        built(state, "cpu"),
        fill(state / f"dist/sglang-{FORK}-cp312-cp312-manylinux_2_34_x86_64.whl"),
        fill(state / f"wheels/sglang-{VERSION}-cp312-cp312-manylinux_2_34_x86_64.whl"),
        fill(state / "cache/triton/kernel.cubin"),
        fill(state / "run/demo/log"),
    }
    old = {
        built(state, "cuda", lock="0" * 64),
        fill(state / f"dist/sglang-{VERSION}+mega.2.gold-cp312-cp312-manylinux_2_34_x86_64.whl"),
        fill(state / "dist/left-out/torch.partial"),
        fill(state / "wheels/sglang-0.0.1-cp312-cp312-manylinux_2_34_x86_64.whl"),
        fill(state / "scratch-abc/tree/file").parents[1],
        fill(state / "stub-abc/libcuda.so.1").parent,
    }
    (state / "venv-cuda/sglang-build.json").write_text(
        json.dumps({"profile": "cuda", "fork": f"{VERSION}+mega.2.gold", "lock": "0" * 64, "python": "cp312"})
    )
    return keep, old


def test_what_no_environment_needs_goes(
    state: Path, used: tuple[set[Path], set[Path]], capsys: pytest.CaptureFixture[str]
) -> None:
    keep, old = used
    said = say(capsys, "clean", "--dry-run")
    assert {line.strip() for line in said.splitlines()[:-1]} == {str(p.relative_to(state)) for p in old}
    assert all(path.exists() for path in keep | old), "a dry run removes nothing"
    (would,) = re.findall(r"would free (\d+ KiB)", said)
    before = clean.measure([state])
    assert f"clean: freed {would}" in say(capsys, "clean")
    assert all(path.exists() for path in keep) and not any(path.exists() for path in old)
    freed = before.freed - clean.measure([state]).freed
    assert 6 * 64 * KIB <= freed < 6 * 64 * KIB + 128 * KIB
    assert abs(freed / KIB - int(would.split()[0])) < 16, "what it says is what the disk says"
    assert say(capsys, "clean").splitlines() == ["clean: freed 0 bytes"]


def test_an_unfinished_environment_goes(state: Path) -> None:
    fill(state / "venv-cpu/lib/half.so")
    assert clean.outdated() == [state / "venv-cpu"]


def test_a_file_shared_with_the_download_cache_is_not_counted_as_freed(state: Path, tmp_path: Path) -> None:
    cached = fill(tmp_path / "cache/torch.so", 256)
    (state / "venv-cpu").mkdir(parents=True)
    (state / "venv-cpu/torch.so").hardlink_to(cached)
    size = clean.measure([state / "venv-cpu"])
    assert size.shared == 256 * KIB and size.freed < 64 * KIB
    assert "256 KiB more is shared with the download cache" in str(size)
    (state / "venv-cpu/second.so").hardlink_to(cached)
    assert clean.measure([state / "venv-cpu"]).shared == 256 * KIB
    assert clean.measure([state / "venv-cpu", tmp_path / "cache"]).shared == 0


def test_caches_and_all(
    state: Path, used: tuple[set[Path], set[Path]], capsys: pytest.CaptureFixture[str]
) -> None:
    say(capsys, "clean", "--caches")
    assert not (state / "cache").exists() and (state / "venv-cpu").exists()
    say(capsys, "clean", "--all")
    assert {path.name for path in state.iterdir()} == {"run", "build.lock"}
    assert (state / "run/demo/log").exists(), "logs are not made again"


def work(state: Path) -> None:
    """A patched tree with an edit that was not exported."""
    git = workspace.repository()
    (workspace.source_dir() / "sglang.py").write_text("mine\n")
    git.run("add", "--all")
    git.run("commit", "--quiet", "-m", "base")
    (workspace.source_dir() / "sglang.py").write_text("mine, edited\n")


def test_all_keeps_unexported_work(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    work(state)
    fill(state / "dist/sglang-1-x.whl")
    say(capsys, "clean", "--all")
    assert (state / "src/sglang.py").read_text() == "mine, edited\n" and not (state / "dist").exists()


@pytest.fixture
def server(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process, recorded as a server that the tool started."""
    identity = process.identify(os.getpid())
    assert identity is not None
    record.folder("demo").mkdir(parents=True)
    record.Record("demo", "demo", identity, "127.0.0.1", 1, 0, "m", "off", 0.0).save()


@pytest.mark.parametrize("words", [["clean"], ["clean", "--all"], ["uninstall"], ["uninstall", "--discard"]])
def test_refused_while_a_server_runs(
    state: Path, server: None, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    fill(state / "scratch-abc/x")
    said = say(capsys, *words, code=2)
    assert "still running: demo" in said and "stop --all" in said
    assert (state / "scratch-abc/x").exists()


def test_clean_is_refused_while_a_build_runs(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(state / "venv-cpu/lib/half.so")
    with build_lock():
        assert "another build is running" in say(capsys, "clean", code=1)
    assert (state / "venv-cpu").exists()


def test_uninstall_removes_all_and_says_how_much(
    state: Path, used: tuple[set[Path], set[Path]], capsys: pytest.CaptureFixture[str]
) -> None:
    with build_lock():
        pass
    said = say(capsys, "uninstall")
    assert not state.exists()
    (freed,) = re.findall(rf"removed {state}, freed (\d+) KiB", said)
    assert int(freed) >= 11 * 64
    assert "freed 0 bytes" in say(capsys, "uninstall"), "once more is no error"


def test_uninstall_refuses_unexported_work(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    work(state)
    said = say(capsys, "uninstall", code=2)
    assert "holds work that was not exported" in said and "--discard" in said
    assert (state / "src/sglang.py").read_text() == "mine, edited\n"
    say(capsys, "uninstall", "--discard")
    assert not state.exists()


def test_uninstall_refuses_a_folder_that_is_not_the_tools(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(state / "photos/holiday.jpg")
    assert "was not made by this tool" in say(capsys, "uninstall", code=2)
    assert (state / "photos/holiday.jpg").exists()
