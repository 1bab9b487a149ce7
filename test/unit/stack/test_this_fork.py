# SPDX-License-Identifier: Apache-2.0
"""The fork's own patch set passes check, and every patch says something that a rebase can use."""

from __future__ import annotations

import pytest

from sglang_fork.paths import ROOT
from sglang_fork.stack import check


@pytest.fixture(scope="module")
def report() -> check.Report:
    return check.check_stack(ROOT)


def test_check_passes(report: check.Report) -> None:
    assert report.faults == []
    assert len(report.passed) == len(check.ITEMS) + 1


def test_patches_stay_seams(report: check.Report) -> None:
    """A hunk is an import and a guarded call: added lines a hunk stay few, over the whole set."""
    hunks, added = sum(s.hunks for s in report.sizes), sum(s.added for s in report.sizes)
    assert added <= 5 * hunks, f"{added} lines added in {hunks} hunks; move bodies to python/sglang"
