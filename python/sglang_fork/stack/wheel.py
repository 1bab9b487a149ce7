# SPDX-License-Identifier: Apache-2.0
"""Upstream's wheels: named by platform, fetched through pip by package name, verified against pinned SHA-256
sums.

``patches/base-wheels.sha256`` holds one ``sha256sum`` line for each wheel of the base release. A wheel that
is already in the state folder's ``wheels`` is used when its sum is right, so a machine without network needs
only that file.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from sglang_fork.errors import ForkError
from sglang_fork.paths import ROOT, state_dir

SUMS = "base-wheels.sha256"
PYTHONS = ("cp311", "cp312", "cp313")
MACHINES = ("x86_64", "aarch64")


@dataclass(frozen=True)
class Platform:
    """A wheel's platform: CPython tag (``cp311``) and machine (``x86_64``)."""

    python: str
    machine: str

    def __post_init__(self) -> None:
        if self.python not in PYTHONS or self.machine not in MACHINES:
            raise ForkError(
                f"no SGLang wheel for {self.python} on {self.machine}",
                f"there are wheels for {', '.join(PYTHONS)} on {' and '.join(MACHINES)}",
            )

    @property
    def python_version(self) -> str:
        """``cp311`` as ``3.11``."""
        return f"{self.python[2]}.{self.python[3:]}"

    def wheel_name(self, version: str) -> str:
        """The file name of upstream's wheel of ``version``."""
        return f"sglang-{version}-{self.python}-{self.python}-manylinux_2_34_{self.machine}.whl"


ALL_PLATFORMS = tuple(Platform(python, machine) for python in PYTHONS for machine in MACHINES)


def native_platform() -> Platform:
    """The running Python's platform; where upstream has no wheel for it, x86_64 cp312, whose sources are the
    same.
    """
    python = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    machine = {"arm64": "aarch64", "AMD64": "x86_64"}.get(platform.machine(), platform.machine())
    if python in PYTHONS and machine in MACHINES:
        return Platform(python, machine)
    return Platform("cp312", "x86_64")


def read_sums(patches: Path) -> dict[str, str]:
    """SHA-256 by wheel file name, from ``patches/base-wheels.sha256``."""
    path = patches / SUMS
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        raise ForkError(f"{path} does not exist", "restore it: git checkout -- patches") from None
    sums = {}
    for line in lines:
        match = re.fullmatch(r"([0-9a-f]{64})  (\S+\.whl)", line)
        if match is None:
            raise ForkError(f"{path}: not a sha256sum line: {line!r}")
        sums[match[2]] = match[1]
    return sums


def sums_text(sums: dict[str, str]) -> str:
    """The content of ``base-wheels.sha256``."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items()))


def sha256(path: Path) -> str:
    """Hex SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def wheels_dir() -> Path:
    """Where verified wheels are kept."""
    return state_dir() / "wheels"


def fetch_base_wheel(platform: Platform | None = None, patches: Path | None = None) -> Path:
    """The verified wheel of the pinned base release for ``platform`` (default: the running Python's), fetched
    if absent.

    Raises ForkError when the wheel's SHA-256 is not the pinned one; a corrupt file never stays in ``wheels``.
    """
    from sglang_fork.stack.series import read_series

    patches = patches or ROOT / "patches"
    name = (platform or native_platform()).wheel_name(read_series(patches).version)
    sums = read_sums(patches)
    if name not in sums:
        raise ForkError(f"patches/{SUMS} has no sum for {name}")
    kept = wheels_dir() / name
    if kept.exists():
        if sha256(kept) == sums[name]:
            return kept
        kept.unlink()
        print(f"wheel: {name} was corrupt and is fetched again", file=sys.stderr)
    return download(platform or native_platform(), read_series(patches).version, sums[name])


def download(platform: Platform, version: str, expected: str | None) -> Path:
    """Fetch one wheel with pip into ``wheels``; ``expected`` is its SHA-256, None where not known yet."""
    name = platform.wheel_name(version)
    folder = wheels_dir()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as scratch:
        _pip(["download", "--quiet", *selector(platform), "--dest", scratch, f"sglang=={version}"], name)
        got = Path(scratch, name)
        if not got.exists():
            names = ", ".join(p.name for p in Path(scratch).iterdir()) or "nothing"
            raise ForkError(f"asked pip for {name}, got {names}", code=1)
        digest = sha256(got)
        if expected is not None and digest != expected:
            raise ForkError(
                f"{name} is not the pinned file: sha256 {digest}, pinned {expected}",
                "fetch it from a source you trust, or, if upstream replaced the file, review it and re-pin",
            )
        got.replace(folder / name)
    return folder / name


def selector(platform: Platform) -> list[str]:
    """pip's arguments that choose exactly one wheel, whatever machine pip runs on."""
    return [
        "--no-deps",
        "--only-binary=:all:",
        f"--python-version={platform.python_version}",
        "--implementation=cp",
        f"--abi={platform.python}",
        f"--platform=manylinux_2_34_{platform.machine}",
    ]


def pip_command() -> list[str]:
    """pip of the running Python, or pip run by uv where that Python has none."""
    probe = subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, env=_plain_env())
    if probe.returncode == 0:
        return [sys.executable, "-m", "pip"]
    uv = shutil.which("uv", path=f"{state_dir() / 'tools'}{os.pathsep}{os.environ.get('PATH', '')}")
    if uv is not None:
        return [uv, "run", "--no-project", "--python", sys.executable, "--with", "pip", "python", "-m", "pip"]
    raise ForkError(
        f"{sys.executable} has no pip and uv is not on PATH",
        "install pip (python -m ensurepip), or uv, or put the wheel into .sglang/wheels by hand",
    )


def _plain_env() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}


def _pip(args: list[str], what: str) -> str:
    done = subprocess.run([*pip_command(), *args], capture_output=True, text=True, env=_plain_env())
    if done.returncode:
        tail = "\n".join(done.stderr.strip().splitlines()[-5:])
        raise ForkError(
            f"pip could not fetch {what}:\n{tail}",
            f"check the network and pip's configuration, or put the file into {wheels_dir()} by hand",
            code=1,
        )
    return done.stdout
