# SPDX-License-Identifier: Apache-2.0
"""uv, which makes and fills the environment: PATH's, or one installed by hash into the state folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from sglang_fork.errors import ForkError
from sglang_fork.lock import FOLDER, UV
from sglang_fork.lock.requirements import parse_lock, read_lock
from sglang_fork.paths import state_dir

OLDEST = (0, 8)
"""The oldest uv on PATH that is used; every option that this tool passes exists since then."""


def uv_version(executable: str | Path) -> tuple[int, ...] | None:
    """The version that an executable prints, None where it does not run (a shim may not)."""
    try:
        done = subprocess.run([str(executable), "--version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.match(r"uv (\d+)\.(\d+)\.(\d+)", done.stdout) if done.returncode == 0 else None
    return tuple(int(part) for part in match.groups()) if match else None


def find_uv() -> Path | None:
    """A uv that is new enough: the state folder's, else PATH's; None where there is none."""
    for candidate in (state_dir() / "tools" / "uv", shutil.which("uv")):
        if candidate is not None and (uv_version(candidate) or (0,)) >= OLDEST:
            return Path(candidate)
    return None


def ensure_uv() -> Path:
    """``find_uv``, or the locked uv installed with pip into the state folder's ``tools``."""
    found = find_uv()
    if found is not None:
        return found
    version = parse_lock(read_lock(FOLDER / UV))[0].version
    tools = state_dir() / "tools"
    target = tools / f"uv-{version}"
    shutil.rmtree(target, ignore_errors=True)
    tools.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip"]
    if subprocess.run([*pip, "--version"], capture_output=True, env=plain_env()).returncode:
        raise ForkError(
            f"needs uv {'.'.join(map(str, OLDEST))} or newer, and {sys.executable} has no pip to install it",
            f"install uv, or pip: {sys.executable} -m ensurepip",
        )
    options = ["--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:", "--target", str(target)]
    done = subprocess.run(
        [*pip, "install", *options, "-r", str(FOLDER / UV)], capture_output=True, text=True, env=plain_env()
    )
    if done.returncode:
        shutil.rmtree(target, ignore_errors=True)
        tail = "\n".join(done.stderr.strip().splitlines()[-5:])
        raise ForkError(
            f"pip could not install uv {version}:\n{tail}", "check the network, or install uv", code=1
        )
    link = tools / "uv"
    link.unlink(missing_ok=True)
    link.symlink_to(target / "bin" / "uv")
    return link


def run_uv(uv: Path, *args: str, what: str) -> None:
    """Run uv; its own progress shows on a terminal, errors become a ForkError that says ``what`` failed."""
    show = sys.stderr.isatty()
    command = [str(uv), *args] if show else [str(uv), "--quiet", *args]
    done = subprocess.run(command, stderr=None if show else subprocess.PIPE, text=True, env=plain_env())
    if done.returncode:
        raise ForkError(f"{what} failed{uv_complaint(done.stderr)}", _hint(done.stderr or ""), code=1)


def uv_complaint(stderr: str | None) -> str:
    """uv's error, shortened to what a person reads."""
    lines = [line for line in (stderr or "").strip().splitlines() if line.strip()]
    return ":\n  " + "\n  ".join(lines[-12:]) if lines else ""


def plain_env(extra: Sequence[tuple[str, str]] = ()) -> dict[str, str]:
    """The environment for installers: no Python variables of the caller, and no active environment."""
    drop = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX", "UV_SYSTEM_PYTHON")
    return {k: v for k, v in os.environ.items() if k not in drop} | dict(extra)


def _hint(stderr: str) -> str:
    if "No space left" in stderr or "os error 28" in stderr:
        return "the disk is full: ./sglang.sh clean, or name another folder in SGLANG_FORK_HOME"
    if "ash mismatch" in stderr:
        return "a download is not the locked file: try again, and if it stays so, do not install it"
    return "run ./sglang.sh build again: what was downloaded is kept"
