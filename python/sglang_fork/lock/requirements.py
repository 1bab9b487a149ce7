# SPDX-License-Identifier: Apache-2.0
"""Reads what this tool needs of requirements files and wheel metadata, with the standard library alone."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path

from sglang_fork.errors import ForkError

_PIN = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)(\[[^\]]*\])?==(?P<version>[^\s;\\]+)\s*(;\s*(?P<marker>[^\\]+))?"
)
_REQUIREMENT = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)\s*(\[[^\]]*\])?\s*(?P<spec>[^;]*)(;(?P<marker>.*))?"
)


@dataclass(frozen=True)
class Pin:
    """One entry of a lock: a version, the marker under which it holds (empty: always), its files' sums."""

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class Metadata:
    """What a lock depends on in a wheel's METADATA."""

    version: str
    requires: tuple[str, ...]
    """The ``Requires-Dist`` values that belong to no extra, in file order."""

    def digest(self) -> str:
        """SHA-256 of the sorted requirements: it changes exactly when the base asks for something else."""
        return hashlib.sha256("\n".join(sorted(self.requires)).encode()).hexdigest()


def canonical(name: str) -> str:
    """A distribution name in its normal form (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def parse_lock(text: str) -> list[Pin]:
    """The pins of a lock, in file order."""
    pins = []
    for block in _blocks(text):
        match = _PIN.match(block)
        if match is None:
            raise ForkError(f"the lock holds a line that is not a pin: {block.splitlines()[0]!r}")
        hashes = tuple(re.findall(r"--hash=(sha256:[0-9a-f]{64})", block))
        marker = (match["marker"] or "").strip()
        pins.append(Pin(canonical(match["name"]), match["version"], marker, hashes, block))
    return pins


def header(text: str) -> dict[str, str]:
    """The ``# key: value`` lines at the head of a lock."""
    pairs = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        key, colon, value = line[1:].partition(":")
        if colon:
            pairs[key.strip()] = value.strip()
    return pairs


def read_lock(path: Path) -> str:
    """A lock's text; a ForkError where it is missing."""
    try:
        return path.read_text()
    except FileNotFoundError:
        raise ForkError(f"{path} does not exist", "restore it: git checkout, or ./sglang.sh lock") from None


def parse_metadata(text: str) -> Metadata:
    """The version and the unconditional-by-extra requirements of a METADATA file."""
    message = HeaderParser().parsestr(text)
    every = [str(value) for value in message.get_all("Requires-Dist", [])]
    return Metadata(str(message["Version"]), tuple(r for r in every if not re.search(r"\bextra\s*==", r)))


def split_requirement(requirement: str) -> tuple[str, str, str]:
    """Name, specifier and marker of a requirement: ``torch==2.14.1; x`` is ``torch``, ``==2.14.1``, ``x``."""
    match = _REQUIREMENT.match(requirement)
    if match is None:
        raise ForkError(f"not a requirement: {requirement!r}")
    return canonical(match["name"]), match["spec"].strip(" ()"), (match["marker"] or "").strip()


def _blocks(text: str) -> list[str]:
    """The lock's entries with their continuation lines, comments left out."""
    blocks: list[str] = []
    continued = False
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if continued:
            blocks[-1] += "\n" + line
        else:
            blocks.append(line)
        continued = line.endswith("\\")
    return blocks
