# SPDX-License-Identifier: Apache-2.0
"""The report of a rebase, in Markdown: every verdict, range-diff, broken pins with upstream's diff."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from sglang_fork.stack.rebase.state import Outcome


@dataclass
class Report:
    """What a rebase found. ``pins``: upstream's diff by key; ``faults``: what keeps it from being green."""

    old: str
    new: str
    outcomes: list[Outcome]
    range_diff: str = ""
    pins: dict[str, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def text(self) -> str:
        parts = [f"# SGLang {self.old} to {self.new}", self._table()]
        if self.faults:
            parts.append("## Not green\n\n" + "\n".join(f"- {fault}" for fault in self.faults))
        if self.notes:
            parts.append("## Notes\n\n" + "\n".join(f"- {note}" for note in self.notes))
        for key, diff in self.pins.items():
            parts.append(f"## Upstream changed {key}\n\n```diff\n{diff or '(gone)'}\n```")
        if self.range_diff:
            parts.append(f"## Range-diff\n\n```\n{self.range_diff}\n```")
        return "\n\n".join(parts) + "\n"

    def _table(self) -> str:
        rows = [f"| {o.name.removesuffix('.patch')} | {o.verdict} | {o.detail} |" for o in self.outcomes]
        return "\n".join(["| patch | verdict | detail |", "|---|---|---|", *rows])

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.text())
