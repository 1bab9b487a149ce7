# SPDX-License-Identifier: Apache-2.0
"""Runs pytest in the built environment and counts what it did."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sglang_fork import env
from sglang_fork.paths import ROOT

AREAS = ("unit", "kernels", "bench", "e2e")
"""Folders under ``test``, in the order in which they run, each in a process of its own."""
TEST_LIMIT_S = 600


@dataclass(frozen=True)
class Counts:
    """How many tests passed, failed (errors included) and were skipped."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped)

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def areas(root: Path = ROOT) -> list[str]:
    """The test folders that exist, known ones first and in order."""
    present = {
        path.name for path in (root / "test").iterdir() if path.is_dir() and any(path.rglob("test_*.py"))
    }
    return [f"test/{name}" for name in (*(a for a in AREAS if a in present), *sorted(present - set(AREAS)))]


def run_pytest(arguments: Sequence[str], profile: str, root: Path = ROOT) -> Counts:
    """Run pytest in the profile's environment; a run that breaks counts as one failure more."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        command = [
            str(env.venv_python(profile)), "-P", "-m", "pytest", f"--junitxml={report}", "--durations=10",
            f"--timeout={TEST_LIMIT_S}", "-p", "no:cacheprovider", *arguments,
        ]  # fmt: skip
        # One thread: products as small as the tests' take less time than OpenMP's threads take to meet.
        variables = {"OMP_NUM_THREADS": "1"} | os.environ | env.process_env(profile)
        variables.pop("PYTHONPATH", None)
        child = subprocess.Popen(command, cwd=root, env=variables)
        try:
            code = child.wait()
        except KeyboardInterrupt:
            child.send_signal(signal.SIGINT)
            child.wait()
            raise
        counts = read_report(report)
    if code in (0, 1) or (code == 5 and counts == Counts()):
        return counts
    print(f"pytest ended with status {code}", flush=True)
    return counts + Counts(failed=1)


def read_report(path: Path) -> Counts:
    """The counts of a JUnit report; a missing or broken report is one failure."""
    try:
        suites = list(ElementTree.parse(path).getroot().iter("testsuite"))
    except (OSError, ElementTree.ParseError):
        return Counts(failed=1)
    total = sum(int(s.get("tests", 0)) for s in suites)
    failed = sum(int(s.get("failures", 0)) + int(s.get("errors", 0)) for s in suites)
    skipped = sum(int(s.get("skipped", 0)) for s in suites)
    return Counts(total - failed - skipped, failed, skipped)
