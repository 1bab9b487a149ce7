# SPDX-License-Identifier: Apache-2.0
"""A rebase in progress, kept in ``.sglang/rebase`` between commands."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from sglang_fork.errors import ForkError
from sglang_fork.paths import state_dir


@dataclass(frozen=True)
class Outcome:
    """What became of one patch: ``verdict`` is one of the constants of ``port``, ``detail`` says more."""

    name: str
    verdict: str
    detail: str = ""


@dataclass
class State:
    """``old_*``: where the patches come from. ``label``: the new base (a release, or ``git-<commit>``),
    ``base`` its commit. ``names``: patch files in order; the first ``len(outcomes)`` of them are dealt with.
    ``stopped``: the outcome that waits for a person, and ``head`` the new tree's commit before that patch.
    ``tests``: what the gate runs, empty for everything.
    """

    old_version: str
    old_base: str
    old_tip: str
    label: str
    base: str
    release: bool
    patches_only: bool
    skip_tests: bool
    names: list[str]
    outcomes: list[Outcome] = field(default_factory=list)
    stopped: Outcome | None = None
    head: str = ""
    tests: list[str] = field(default_factory=list)

    @property
    def installs(self) -> bool:
        """Whether success changes the checkout; otherwise the ported patches are written to a folder."""
        return self.release and not self.patches_only


def folder() -> Path:
    """The rebase's folder: ``state.json``, ``old`` (patch files), ``tree`` (the new tree), ``checkout``,
    ``home``.
    """
    return state_dir() / "rebase"


def tree_dir() -> Path:
    """The work tree in which conflicts are resolved."""
    return folder() / "tree"


def in_progress() -> bool:
    return (folder() / "state.json").exists()


def load() -> State:
    """The state of the rebase in progress; ForkError when there is none."""
    if not in_progress():
        raise ForkError("no rebase is in progress", "start one: ./sglang.sh rebase VERSION")
    raw = json.loads((folder() / "state.json").read_text())
    outcomes = [Outcome(**item) for item in raw.pop("outcomes")]
    stopped = raw.pop("stopped")
    return State(**raw, outcomes=outcomes, stopped=Outcome(**stopped) if stopped else None)


def save(state: State) -> None:
    path = folder() / "state.json"
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(asdict(state), indent=1) + "\n")
    fresh.replace(path)
