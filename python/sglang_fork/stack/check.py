# SPDX-License-Identifier: Apache-2.0
"""``check``: everything that can be wrong with the patch set and needs neither torch nor a GPU to be seen.

Items run in order; all that can still run do run, so that one report lists every fault.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from sglang_fork.errors import ForkError
from sglang_fork.paths import ROOT
from sglang_fork.stack import apply, faults, wheel, workspace
from sglang_fork.stack.faults import Stack
from sglang_fork.stack.git import Git
from sglang_fork.stack.series import Series, patch_files, read_series


@dataclass(frozen=True)
class Size:
    """One patch's size: files touched, hunks, lines added and removed."""

    name: str
    files: int
    hunks: int
    added: int
    removed: int


@dataclass
class Report:
    """What ``check`` found: ``passed`` items, ``faults`` as (item, text), ``sizes`` of the patches."""

    passed: list[str] = field(default_factory=list)
    faults: list[tuple[str, str]] = field(default_factory=list)
    sizes: list[Size] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.faults

    def run(self, item: str, find: Callable[[], list[str]]) -> None:
        """Run one item; a ForkError is its fault."""
        try:
            found = find()
        except ForkError as error:
            found = [str(error)]
        self.faults += [(item, text) for text in found]
        if not found:
            self.passed.append(item)


ITEMS: tuple[tuple[str, Callable[[Stack], list[str]]], ...] = (
    ("headers", faults.in_headers),
    ("byte-identical re-export", faults.in_export),
    ("patches edit upstream's files alone", faults.in_paths),
    ("no added file at a path of upstream's", faults.in_overlay),
    ("every touched and added file compiles", faults.in_syntax),
    ("every hook sits where its header says", faults.in_hooks),
    ("pins hold", faults.in_pins),
    ("wheel sums cover every platform", faults.in_sums),
    ("lock matches the base", faults.in_lock),
)


def check_stack(checkout: Path = ROOT) -> Report:
    """Check ``patches/`` and the overlay of a checkout against the pinned base; the patched tree is not
    touched.
    """
    report = Report()
    with workspace.locked():
        stacks: list[Stack] = []
        report.run("series, files, wheel and exact apply", partial(_build, checkout, stacks))
        for stack in stacks:
            report.sizes = [size(stack.git, path.name, a, b) for path, a, b in stack.pairs()]
            for item, find in ITEMS:
                report.run(item, partial(find, stack))
    return report


def _build(checkout: Path, stacks: list[Stack]) -> list[str]:
    stacks.append(build(checkout, read_series(checkout / "patches")))
    return []


def build(checkout: Path, series: Series) -> Stack:
    """The series of a checkout, applied exactly in a scratch."""
    files = patch_files(checkout / "patches", series)
    path = wheel.fetch_base_wheel(patches=checkout / "patches")
    git = workspace.repository()
    base = apply.base_commit(git, path, series)
    tip = apply.build_commits(git, base, files)
    commits = git.lines("rev-list", "--reverse", f"{base}..{tip}")
    return Stack(git, checkout, series, tuple(files), path, base, tuple(commits))


def size(git: Git, name: str, parent: str, commit: str) -> Size:
    """Count a patch's files, hunks and lines."""
    diff = git.out("diff-tree", "-r", "-p", "-U0", "--no-renames", "--no-color", parent, commit).split("\n")
    added = sum(line.startswith("+") and not line.startswith("+++ ") for line in diff)
    removed = sum(line.startswith("-") and not line.startswith("--- ") for line in diff)
    hunks = sum(line.startswith("@@ ") for line in diff)
    return Size(name, sum(line.startswith("diff --git ") for line in diff), hunks, added, removed)
