# SPDX-License-Identifier: Apache-2.0
"""What is asked of pip: one wheel by platform, the sum the index publishes for it, and the newest release.

pip runs with the user's own configuration, so mirrors and offline folders work as they do elsewhere.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from sglang_fork.errors import ForkError
from sglang_fork.paths import state_dir
from sglang_fork.stack.platforms import Platform, native_platform


def download(platform: Platform, version: str, folder: Path) -> None:
    """Download one wheel of SGLang into ``folder``, whatever machine this is."""
    _pip(
        ["download", "--quiet", *_selector(platform), f"--dest={folder}", f"sglang=={version}"],
        f"sglang {version}",
    )


def published_sum(platform: Platform, version: str) -> str:
    """The SHA-256 that the index publishes for one wheel; the wheel itself is not kept."""
    info = _report(platform, f"sglang=={version}")["download_info"]
    if not info["url"].endswith(platform.wheel_name(version)):
        raise ForkError(f"the index has no {platform.wheel_name(version)}")
    return str(info["archive_info"]["hashes"]["sha256"])


def newest_release() -> str:
    """The newest release on the index that is not a pre-release."""
    return str(_report(native_platform(), "sglang")["metadata"]["version"])


def _report(platform: Platform, requirement: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        dry = ["--dry-run", "--ignore-installed", f"--target={scratch}", "--report=-"]
        said = _pip(["install", "--quiet", *dry, *_selector(platform), requirement], requirement)
    install: list[dict[str, Any]] = json.loads(said)["install"]
    return install[0]


def _selector(platform: Platform) -> list[str]:
    return [
        "--no-deps",
        "--only-binary=:all:",
        f"--python-version={platform.python_version}",
        "--implementation=cp",
        f"--abi={platform.python}",
        f"--platform=manylinux_2_34_{platform.machine}",
    ]


def _command() -> list[str]:
    """pip of the running Python, or pip run by uv where that Python has none."""
    probe = subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, env=_env())
    if probe.returncode == 0:
        return [sys.executable, "-m", "pip"]
    uv = shutil.which("uv", path=f"{state_dir() / 'tools'}{os.pathsep}{os.environ.get('PATH', '')}")
    if uv is not None:
        return [uv, "run", "--no-project", "--python", sys.executable, "--with", "pip", "python", "-m", "pip"]
    raise ForkError(
        f"{sys.executable} has no pip and uv is not on PATH",
        f"install pip (python -m ensurepip) or uv, or put the wheel into {state_dir() / 'wheels'} by hand",
    )


def _env() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}


def _pip(args: list[str], what: str) -> str:
    done = subprocess.run([*_command(), *args], capture_output=True, text=True, env=_env())
    if done.returncode:
        tail = "\n".join(done.stderr.strip().splitlines()[-5:])
        raise ForkError(
            f"pip could not get {what}:\n{tail}",
            f"check the network and pip's settings, or put the wheel into {state_dir() / 'wheels'} by hand",
            code=1,
        )
    return done.stdout


def download_locked(platform: Platform, requirements: Path, folder: Path) -> None:
    """Download the wheels of a requirements file with hashes into ``folder``, for a platform that may not be
    this one.
    """
    glibc = [f"manylinux_2_{minor}_{platform.machine}" for minor in range(34, 4, -1)]
    older = [
        f"{name}_{platform.machine}" for name in ("manylinux2014", "manylinux2010", "manylinux1", "linux")
    ]
    tags = [f"--platform={tag}" for tag in (*glibc, *older)]
    tags += [f"--abi={abi}" for abi in (platform.python, "abi3", "none")]
    selection = ["--no-deps", "--only-binary=:all:", f"--python-version={platform.python_version}"]
    _pip(
        ["download", "--quiet", *selection, "--implementation=cp", *tags, "--require-hashes",
         f"--dest={folder}", "--requirement", str(requirements)],
        f"the wheels for {platform.python} on {platform.machine}",
    )  # fmt: skip
