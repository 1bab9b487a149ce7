# SPDX-License-Identifier: Apache-2.0
"""uv: which one is taken, and the one installed by hash with pip where there is none, for real."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_fork.build import installer
from sglang_fork.build.installer import ensure_uv, find_uv, uv_version
from sglang_fork.errors import ForkError
from sglang_fork.lock import FOLDER, UV
from sglang_fork.lock.requirements import parse_lock, read_lock
from sglang_fork.paths import ROOT


def script(folder: Path, says: str, name: str = "uv", status: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / name
    made.write_text(f"#!/bin/sh\necho '{says}'\nexit {status}\n")
    made.chmod(0o755)
    return made


@pytest.mark.parametrize(
    ("says", "status", "taken"),
    [
        ("uv 0.13.9 (abc 2026-11-01)", 0, True),
        ("uv 0.8.0", 0, True),
        ("uv 0.7.99", 0, False),
        ("uv 0.13.9", 127, False),
        ("something else", 0, False),
    ],
)
def test_uv_on_path_must_run_and_be_new_enough(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, status: int, taken: bool
) -> None:
    uv = script(tmp_path / "bin", says, status=status)
    monkeypatch.setenv("PATH", str(uv.parent))
    assert find_uv() == (uv if taken else None)


def test_the_state_folders_own_uv_comes_first(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(tmp_path / "bin", "uv 0.13.9")
    own = script(state / "tools", "uv 0.13.9")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert find_uv() == own
    script(state / "tools", "uv 0.2.0")
    assert find_uv() == tmp_path / "bin/uv", "an old one left by an earlier lock is not taken"


def test_a_python_without_pip(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(script(tmp_path, "No module named pip", "python", status=1)))
    with pytest.raises(ForkError, match=r"has no pip to install it\n.*ensurepip"):
        ensure_uv()
    assert not (state / "tools/uv").exists()


@pytest.fixture(scope="module")
def python_with_pip() -> str:
    """A Python of this version with pip; the test environment's own has none."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    for candidate in (sys.executable, str(Path(sys.base_prefix) / "bin" / version), shutil.which(version)):
        if (
            candidate
            and not subprocess.run([candidate, "-m", "pip", "--version"], capture_output=True).returncode
        ):
            return candidate
    pytest.skip("no Python with pip on this machine")


CODE = """
import sys
from pathlib import Path
from sglang_fork.build import installer
from sglang_fork.errors import ForkError
installer.FOLDER = Path(sys.argv[1])
try:
    print(installer.ensure_uv())
except ForkError as error:
    sys.exit(str(error))
"""


def ensure(python: str, lock: Path, state: Path, nothing: Path) -> subprocess.CompletedProcess[str]:
    """``ensure_uv`` in a process of a Python with pip, with no uv on PATH."""
    variables = os.environ | {"PATH": str(nothing), "PYTHONPATH": str(ROOT / "python")}
    variables["SGLANG_FORK_HOME"] = str(state)
    command = [python, "-P", "-c", CODE, str(lock)]
    return subprocess.run(command, capture_output=True, text=True, env=variables)


def test_uv_by_pip_and_by_hash(state: Path, tmp_path: Path, python_with_pip: str) -> None:
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    done = ensure(python_with_pip, FOLDER, state, nothing)
    assert done.returncode == 0, done.stderr
    uv = Path(done.stdout.strip())
    locked = parse_lock(read_lock(FOLDER / UV))[0].version
    assert uv == state / "tools/uv" and uv_version(uv) == tuple(map(int, locked.split(".")))
    stamp = uv.resolve().stat().st_mtime_ns
    assert ensure(python_with_pip, FOLDER, state, nothing).stdout == done.stdout
    assert uv.resolve().stat().st_mtime_ns == stamp, "installed once"
    # It does what a build asks of it.
    venv = subprocess.run(
        [str(uv), "venv", "--quiet", "--no-project", "--python", sys.executable, str(tmp_path / "venv")],
        capture_output=True,
        text=True,
        env=installer.plain_env(),
    )
    assert venv.returncode == 0, venv.stderr


def test_a_uv_that_is_not_the_locked_file_is_not_installed(
    state: Path, tmp_path: Path, python_with_pip: str
) -> None:
    (tmp_path / "lock").mkdir()
    wrong = re.sub(r"sha256:[0-9a-f]{64}", "sha256:" + "0" * 64, read_lock(FOLDER / UV))
    (tmp_path / "lock" / UV).write_text(wrong)
    done = ensure(python_with_pip, tmp_path / "lock", state, tmp_path)
    assert done.returncode == 1 and "pip could not install uv" in done.stderr
    assert list((state / "tools").iterdir()) == []
