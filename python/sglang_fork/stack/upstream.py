# SPDX-License-Identifier: Apache-2.0
"""``upstream status``: where every patch stands with upstream, and whether it can be dropped."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

from sglang_fork.paths import ROOT
from sglang_fork.stack import check, digest, workspace
from sglang_fork.stack.git import Git
from sglang_fork.stack.header import parse
from sglang_fork.stack.rebase.target import of_release
from sglang_fork.stack.series import read_series

HOLDS, HOLDS_NOT, UNDECIDED = "holds", "does not hold", "a person decides"


@dataclass(frozen=True)
class Standing:
    """One patch: its ``Upstream-Status``, its ``Drop-When`` and whether that holds on the release asked
    about.

    ``contained``: the release already has the patch's lines, which then applies in reverse.
    """

    name: str
    status: str
    drop_when: str
    verdict: str
    contained: bool


def status(release: str | None = None, checkout: Path = ROOT) -> tuple[str, list[Standing]]:
    """Every patch's standing against ``release`` (default: the pinned base; ``newest``)."""
    with workspace.locked():
        stack = check.build(checkout, read_series(checkout / "patches"))
        git, label, commit = stack.git, stack.series.version, stack.base
        if release is not None:
            target = of_release(git, release)
            label, commit = target.label, target.commit
        standings = []
        for path, _, patch in stack.pairs():
            header = parse(stack.message(patch))
            rules = header.all("Drop-Check")
            held = [holds(git, commit, label, rule) for rule in rules]
            verdict = UNDECIDED if not rules else HOLDS if all(held) else HOLDS_NOT
            standings.append(
                Standing(
                    path.name.removesuffix(".patch"),
                    header.one("Upstream-Status") or "none",
                    header.one("Drop-When") or "none",
                    verdict,
                    contains(git, commit, path),
                )
            )
    return label, standings


def holds(git: Git, commit: str, version: str, rule: str) -> bool:
    """Whether a ``Drop-Check`` rule holds for a base commit."""
    word, _, rest = rule.partition(" ")
    if word == "release":
        return _number(version) >= _number(rest.removeprefix(">= "))
    path, _, tail = rest.partition(" ")
    if word in ("contains", "lacks"):
        source = git.show(commit, path)
        return (source is not None and tail.encode() in source) == (word == "contains")
    path, _, name = rest.partition("::")
    source = git.show(commit, path)
    exists = source is not None and (not name or digest.find(ast.parse(source), name) is not None)
    return exists == (word == "exists")


def contains(git: Git, commit: str, patch: Path) -> bool:
    """Whether the patch applies in reverse to a base commit: all its lines are there."""
    with workspace.scratch() as scratch:
        staging = Git(git.path, index=scratch / "contains.index")
        staging.run("read-tree", commit)
        done = staging.run("apply", "--cached", "--check", "--reverse", str(patch), check=False)
    return done.returncode == 0


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
