# SPDX-License-Identifier: Apache-2.0
"""``patches/series``: the base release, the hash of its tree, and the patches in the order in which they
apply.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from sglang_fork.errors import ForkError

SERIES = "series"


@dataclass(frozen=True)
class Series:
    """``version`` of the base release, ``tree`` its git tree id (compiled extensions left out), ``names`` in
    order.
    """

    version: str
    tree: str
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(set(self.names)) != len(self.names):
            twice = sorted({n for n in self.names if self.names.count(n) > 1})
            raise ForkError(f"patches/series lists twice: {', '.join(twice)}")

    def text(self) -> str:
        """The file's content."""
        return "\n".join([f"base sglang=={self.version}", f"base-tree {self.tree}", *self.names]) + "\n"

    def write(self, patches: Path) -> None:
        (patches / SERIES).write_text(self.text())


def read_series(patches: Path) -> Series:
    """Parse ``patches/series``; a malformed line is a ForkError that quotes it."""
    path = patches / SERIES
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        raise ForkError(f"{path} does not exist", "this is not a checkout of the fork") from None
    base = re.fullmatch(r"base sglang==(\S+)", lines[0]) if lines else None
    tree = re.fullmatch(r"base-tree ([0-9a-f]{40})", lines[1]) if len(lines) > 1 else None
    if base is None or tree is None:
        raise ForkError(f"{path}: the first two lines must be 'base sglang==VERSION' and 'base-tree HASH'")
    for name in lines[2:]:
        if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*\.patch", name):
            raise ForkError(f"{path}: not a patch file name: {name!r}")
    return Series(base[1], tree[1], tuple(lines[2:]))


def patch_files(patches: Path, series: Series) -> list[Path]:
    """The patch files in order; series and folder must name the same set."""
    present = {p.name for p in patches.glob("*.patch")}
    missing = [n for n in series.names if n not in present]
    if missing:
        raise ForkError(f"patches/series names files that do not exist: {', '.join(missing)}")
    unlisted = sorted(present - set(series.names))
    if unlisted:
        raise ForkError(f"patches/ holds files that series does not name: {', '.join(unlisted)}")
    return [patches / n for n in series.names]
