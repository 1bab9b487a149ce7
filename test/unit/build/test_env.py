# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest

from sglang_fork import env
from sglang_fork.errors import ForkError


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SGLANG_FORK_HOME", str(tmp_path / "state"))
    for name in ("SGLANG_FORK_PROFILE", "CUDA_HOME", "SGLANG_CACHE_DIR", "LD_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(env, "driver_present", lambda root=Path("/"): False)
    return tmp_path / "state"


def make_built(state: Path, profile: str) -> Path:
    python = state / f"venv-{profile}" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    (state / f"venv-{profile}" / env.STAMP).write_text("{}")
    return python


def test_unbuilt_names_the_command(state: Path) -> None:
    assert env.built_profile() is None
    with pytest.raises(ForkError, match=r"not built\n.*sglang\.sh build"):
        env.venv_python()
    with pytest.raises(ForkError, match="build --profile cpu"):
        env.venv_python("cpu")


def test_an_unstamped_environment_is_not_built(state: Path) -> None:
    make_built(state, "cpu")
    (state / "venv-cpu" / env.STAMP).unlink()
    assert env.built_profile() is None


def test_profile_follows_the_machine(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, cuda = make_built(state, "cpu"), make_built(state, "cuda")
    assert env.venv_python() == cpu
    monkeypatch.setattr(env, "driver_present", lambda root=Path("/"): True)
    assert env.venv_python() == cuda
    monkeypatch.setenv("SGLANG_FORK_PROFILE", "cpu")
    assert env.venv_python() == cpu


def test_unknown_profile(state: Path) -> None:
    with pytest.raises(ForkError, match="unknown profile tpu"):
        env.venv_python("tpu")


def test_stub_is_for_cpu_processes_without_a_driver(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (state / "stub").mkdir(parents=True)
    (state / "stub" / env.DRIVER).touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", "/some/lib")
    assert env.process_env("cpu")["LD_LIBRARY_PATH"] == f"{state / 'stub'}:/some/lib"
    assert "LD_LIBRARY_PATH" not in env.process_env("cuda")
    monkeypatch.setattr(env, "driver_present", lambda root=Path("/"): True)
    assert "LD_LIBRARY_PATH" not in env.process_env("cpu")


def test_caches_lie_in_the_state_folder_unless_the_user_says(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert env.process_env("cuda")["SGLANG_CACHE_DIR"] == str(state / "cache" / "sglang")
    monkeypatch.setenv("SGLANG_CACHE_DIR", "/elsewhere")
    assert "SGLANG_CACHE_DIR" not in env.process_env("cuda")


def test_driver_library_in_each_place(state: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    assert env.driver_library(root, {}) is None
    inherited = tmp_path / "inherited"
    inherited.mkdir()
    (inherited / env.DRIVER).touch()
    assert env.driver_library(root, {"LD_LIBRARY_PATH": str(inherited)}) == inherited / env.DRIVER
    cache = f"\t{env.DRIVER} (libc6,x86-64) => {inherited / env.DRIVER}\n"
    assert env.driver_library(root, {}, cache) == inherited / env.DRIVER
    wsl = root / "usr/lib/wsl/lib"
    wsl.mkdir(parents=True)
    (wsl / env.DRIVER).touch()
    assert env.driver_library(root, {}) == wsl / env.DRIVER


def test_the_stub_is_not_a_driver(state: Path, tmp_path: Path) -> None:
    (state / "stub").mkdir(parents=True)
    (state / "stub" / env.DRIVER).touch()
    assert env.driver_library(tmp_path / "root", {"LD_LIBRARY_PATH": str(state / "stub")}) is None
