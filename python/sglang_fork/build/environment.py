# SPDX-License-Identifier: Apache-2.0
"""Makes and fills a profile's virtual environment with exactly what the locks name, by hash."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sglang_fork.build.cudahome import site_packages
from sglang_fork.build.installer import plain_env, run_uv, uv_complaint
from sglang_fork.build.profile import left_out, write_hollow
from sglang_fork.env import venv_dir
from sglang_fork.errors import ForkError
from sglang_fork.lock import DEV, FOLDER, RUNTIME
from sglang_fork.lock.requirements import Pin, parse_lock, read_lock
from sglang_fork.paths import state_dir
from sglang_fork.stack.wheel import sha256

GIB = 1 << 30
NEEDED_BYTES = {"cuda": 12 * GIB, "cpu": 7 * GIB}
"""Disk space that a new environment takes, rounded up from what was measured on x86-64."""


@dataclass(frozen=True)
class Contents:
    """What an environment is to hold: lock pins, and wheels of this tool's own making."""

    pins: tuple[Pin, ...]
    wheels: tuple[tuple[str, Path], ...]
    """Distribution name and file of each."""

    def requirements(self) -> str:
        """The requirements file, every line with its hashes."""
        own = [f"{name} @ {path.as_uri()} --hash=sha256:{sha256(path)}" for name, path in self.wheels]
        return "\n".join([*(pin.text for pin in self.pins), *own]) + "\n"


def is_torch_family(name: str) -> bool:
    """Whether ``--skip-torch`` leaves a package alone: torch, its companions and CUDA packages."""
    return name in ("torch", "torchvision", "torchaudio", "torchcodec", "triton", "cuda-toolkit") or (
        name.startswith("nvidia-") and not name.startswith(("nvidia-cutlass", "nvidia-ml-py"))
    )


def contents(profile: str, fork: Path, dev_tools: bool, skip_torch: bool = False) -> Contents:
    """What the profile holds: its part of the locks, bare metadata for the rest, the fork's wheel."""
    out = {package.name: package for package in left_out(profile)}
    pins = parse_lock(read_lock(FOLDER / RUNTIME))
    if dev_tools:
        have = {pin.name for pin in pins}
        pins += [pin for pin in parse_lock(read_lock(FOLDER / DEV)) if pin.name not in have]
    if skip_torch:
        pins = [pin for pin in pins if not is_torch_family(pin.name)]
    hollow_dir = state_dir() / "dist" / "left-out"
    wheels = [(pin.name, write_hollow(pin, out[pin.name].why, hollow_dir)) for pin in pins if pin.name in out]
    kept = tuple(pin for pin in pins if pin.name not in out)
    return Contents(kept, (*wheels, ("sglang", fork)))


def require_space(profile: str) -> None:
    """Refuse a build for which the state folder's disk has no room, naming what is missing."""
    folder = state_dir()
    folder.mkdir(parents=True, exist_ok=True)
    free, needed = shutil.disk_usage(folder).free, NEEDED_BYTES[profile]
    if free < needed:
        raise ForkError(
            f"no disk space: profile {profile} needs {needed / GIB:.0f} GiB in {folder}, "
            f"{free / GIB:.1f} GiB are free",
            "free some (./sglang.sh clean), or name another folder in SGLANG_FORK_HOME",
        )


def fill(uv: Path, profile: str, what: Contents, anew: bool, skip_torch: bool = False) -> None:
    """Bring the environment to ``what``; ``anew`` makes it from nothing (downloads are in uv's cache).

    ``skip_torch`` keeps the torch that it holds, finished or not, and removes nothing.
    """
    venv = venv_dir(profile)
    if skip_torch:
        _require_torch(venv)
    elif anew:
        shutil.rmtree(venv, ignore_errors=True)
        require_space(profile)
        run_uv(
            uv, "venv", "--python", sys.executable, "--no-project", str(venv), what="making the environment"
        )
    requirements = venv / "requirements.txt"
    requirements.write_text(what.requirements())
    python = str(venv / "bin" / "python")
    command = ["install", "--no-deps", "-r"] if skip_torch else ["sync"]
    run_uv(
        uv, "pip", *command, str(requirements), "--require-hashes", "--python", python,
        what="installing packages",
    )  # fmt: skip


def install_fork(uv: Path, profile: str, fork: Path) -> None:
    """Put another wheel of the fork into an environment whose other packages stay as they are."""
    python = venv_dir(profile) / "bin" / "python"
    run_uv(
        uv, "pip", "install", "--no-deps", "--reinstall-package", "sglang", str(fork), "--python",
        str(python), what="installing the fork's wheel",
    )  # fmt: skip


def check(uv: Path, profile: str) -> None:
    """Raise a ForkError that lists every unmet dependency of the environment (``uv pip check``)."""
    python = venv_dir(profile) / "bin" / "python"
    done = subprocess.run(
        [str(uv), "pip", "check", "--python", str(python)], capture_output=True, text=True, env=plain_env()
    )
    if done.returncode:
        raise ForkError(f"the environment's packages do not fit{uv_complaint(done.stderr)}", code=1)


def tree_size(paths: Iterable[Path]) -> int:
    """Bytes on disk under ``paths``; a file reached twice through hard links counts once."""
    seen: set[tuple[int, int]] = set()
    total = 0
    for root in paths:
        for path in [root, *root.rglob("*")] if root.exists() else []:
            status = path.lstat()
            if (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                total += status.st_blocks * 512
    return total


def _require_torch(venv: Path) -> None:
    if not (venv / "bin" / "python").exists() or not (site_packages(venv) / "torch").is_dir():
        raise ForkError(
            f"--skip-torch: {venv} holds no torch to keep",
            "build once without it, or put your own torch into that environment first",
        )
