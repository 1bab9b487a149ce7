# SPDX-License-Identifier: Apache-2.0
"""sglang.sh itself: which Python it takes, and what works with the standard library alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FAKE = """#!/bin/sh
case "$1" in
  -c) [ {status} = 0 ] && echo "$0"; exit {status} ;;
  -P) echo "{name} ran $*" ;;
esac
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A PATH that holds what the script itself needs, and no Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in ("bash", "dirname"):
        found = shutil.which(tool)
        assert found
        (folder / tool).symlink_to(found)
    return folder


def python(folder: Path, name: str, status: int = 0) -> Path:
    """A Python that answers the version question with ``status``."""
    made = folder / name
    made.write_text(FAKE.format(status=status, name=name).replace("#!/bin/sh", f"#!{shutil.which('sh')}"))
    made.chmod(0o755)
    return made


def call(checkout: Path, path: Path, *words: str, chosen: str = "") -> subprocess.CompletedProcess[str]:
    env = {"PATH": str(path), "PYTHONPATH": "/elsewhere", "SGLANG_FORK_HOME": str(path.parent / "state")}
    env |= {"SGLANG_PYTHON": chosen} if chosen else {}
    return subprocess.run([str(checkout / "sglang.sh"), *words], capture_output=True, text=True, env=env)


def test_the_newest_supported_python_first(checkout: Path, path: Path) -> None:
    for name in ("python3", "python3.11", "python3.12"):
        python(path, name)
        assert call(checkout, path, "a b", "c").stdout == f"{name} ran -P -m sglang_fork a b c\n"


def test_one_that_does_not_run_is_passed_over(checkout: Path, path: Path) -> None:
    python(path, "python3.12", status=127)
    python(path, "python3.11", status=1)
    python(path, "python3")
    assert call(checkout, path).stdout.startswith("python3 ran")


def test_none(checkout: Path, path: Path) -> None:
    python(path, "python3", status=1)
    done = call(checkout, path, "list")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.splitlines() == [
        "sglang.sh: needs Python 3.11 or 3.12; install one, or name it in SGLANG_PYTHON"
    ]


def test_the_named_one_before_all_others(checkout: Path, path: Path, tmp_path: Path) -> None:
    python(path, "python3.12")
    (tmp_path / "my own").mkdir()
    mine = python(tmp_path / "my own", "mine")
    assert call(checkout, path, chosen=str(mine)).stdout.startswith("mine ran")


def test_what_is_built_goes_on_with_its_python(checkout: Path, path: Path, tmp_path: Path) -> None:
    python(path, "python3.12")
    built = tmp_path / "state/venv-cpu/bin"
    built.mkdir(parents=True)
    python(built, "python")
    assert call(checkout, path).stdout.startswith("python ran")
    python(built, "python", status=1)
    assert call(checkout, path).stdout.startswith("python3.12 ran")


def test_byte_code_is_kept(checkout: Path, tmp_path: Path) -> None:
    """Also where the caller's shell forbids it. A Python that was named is taken as it is; that of a built
    environment leads to the one that it was made of, for a build may remove it.
    """
    (tmp_path / "python").mkdir()
    (tmp_path / "python/sglang_fork.py").write_text(
        "import sys; print(sys.dont_write_bytecode, sys.executable)"
    )
    shutil.copy(checkout / "sglang.sh", tmp_path)
    (tmp_path / ".sglang").mkdir()
    (tmp_path / ".sglang/venv-cpu").symlink_to(sys.prefix)
    env = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    env.pop("SGLANG_FORK_HOME", None)
    base: str = sys._base_executable  # type: ignore[attr-defined]
    for named, taken in ((sys.executable, sys.executable), ("", base)):
        command = [str(tmp_path / "sglang.sh")]
        done = subprocess.run(command, capture_output=True, text=True, env=env | {"SGLANG_PYTHON": named})
        assert done.stdout.split() == ["False", taken], done.stderr


@pytest.mark.parametrize("fault", ["missing", "too new", "a folder", "not executable"])
def test_a_named_one_that_does_not_serve_is_refused(
    checkout: Path, path: Path, tmp_path: Path, fault: str
) -> None:
    python(path, "python3.12")
    mine = python(tmp_path, "mine", status=1 if fault == "too new" else 0)
    if fault == "missing":
        mine.unlink()
    elif fault == "a folder":
        mine = tmp_path
    elif fault == "not executable":
        mine.chmod(0o644)
    done = call(checkout, path, "list", chosen=str(mine))
    assert done.returncode == 2 and done.stdout == "", "another Python is not taken in its place"
    assert len(done.stderr.splitlines()) == 1
    assert f"SGLANG_PYTHON is {mine}, which is not a Python 3.11 or 3.12" in done.stderr


@pytest.mark.parametrize("words", [["help"], ["list"], ["--version"], ["completion"], ["show", "Kimi-K3"]])
def test_these_need_the_standard_library_alone(checkout: Path, tmp_path: Path, words: list[str]) -> None:
    """No site-packages, no state folder, and nothing written."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("SGLANG")}
    env |= {"SGLANG_FORK_HOME": str(tmp_path / "state"), "PYTHONPATH": str(checkout / "python")}
    command = [sys.executable, "-S", "-P", "-m", "sglang_fork", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout and not (tmp_path / "state").exists()


def test_version_names_base_and_patches(checkout: Path) -> None:
    done = subprocess.run([str(checkout / "sglang.sh"), "--version"], capture_output=True, text=True)
    series = (checkout / "patches/series").read_text().splitlines()
    base, patches = series[0].rpartition("==")[2], sum(line.endswith(".patch") for line in series)
    assert done.stdout.splitlines()[0] == f"sglang-mega {base}+mega.{patches}"
