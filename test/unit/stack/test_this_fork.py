# SPDX-License-Identifier: Apache-2.0
"""The fork's own patch set passes check, and every patch says something that a rebase can use."""

from __future__ import annotations

from sglang_fork.paths import ROOT
from sglang_fork.stack import check


def test_check_passes() -> None:
    report = check.check_stack(ROOT)
    assert report.faults == []
    assert len(report.passed) == len(check.ITEMS) + 1


def test_patches_stay_seams() -> None:
    """A hunk is an import and a guarded call: added lines a hunk stay few, over the whole set."""
    report = check.check_stack(ROOT)
    hunks, added = sum(s.hunks for s in report.sizes), sum(s.added for s in report.sizes)
    assert added <= 5 * hunks, f"{added} lines added in {hunks} hunks; move bodies to python/sglang"
