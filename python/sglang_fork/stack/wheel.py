# SPDX-License-Identifier: Apache-2.0
"""Upstream's wheels: named by platform, fetched through pip by package name, verified against pinned SHA-256
sums.

``patches/base-wheels.sha256`` holds one ``sha256sum`` line for each wheel of the base release. A wheel that
is already in the state folder's ``wheels`` is used when its sum is right, so a machine without network needs
only that file.
"""

from __future__ import annotations

import hashlib
import re
import sys
import tempfile
from pathlib import Path

from sglang_fork.errors import ForkError
from sglang_fork.paths import ROOT, state_dir
from sglang_fork.stack import pip
from sglang_fork.stack.platforms import Platform, native_platform
from sglang_fork.stack.series import read_series

SUMS = "base-wheels.sha256"


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
    patches = patches or ROOT / "patches"
    platform = platform or native_platform()
    version = read_series(patches).version
    sums = read_sums(patches)
    if platform.wheel_name(version) not in sums:
        raise ForkError(f"patches/{SUMS} has no sum for {platform.wheel_name(version)}")
    return fetch(platform, version, sums[platform.wheel_name(version)])


def fetch_release(platform: Platform, version: str) -> Path:
    """The wheel of a release that is not pinned here, verified against the sum that the index publishes for
    it.
    """
    return fetch(platform, version, pip.published_sum(platform, version))


def fetch(platform: Platform, version: str, expected: str) -> Path:
    """A wheel whose SHA-256 is ``expected``: the one in ``wheels`` when it is right, else a fresh one."""
    name = platform.wheel_name(version)
    folder = wheels_dir()
    kept = folder / name
    if kept.exists():
        if sha256(kept) == expected:
            return kept
        kept.unlink()
        print(f"wheel: {name} in {folder} was not the expected file and is fetched again", file=sys.stderr)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as scratch:
        pip.download(platform, version, Path(scratch))
        got = Path(scratch, name)
        if not got.exists():
            names = ", ".join(p.name for p in Path(scratch).iterdir()) or "nothing"
            raise ForkError(f"asked pip for {name}, got {names}", code=1)
        digest = sha256(got)
        if digest != expected:
            raise ForkError(
                f"{name} is not the pinned file: sha256 {digest}, pinned {expected}",
                "fetch it from a source you trust, or, if upstream replaced the file, review it and re-pin",
            )
        got.replace(kept)
    return kept
