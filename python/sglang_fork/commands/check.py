# SPDX-License-Identifier: Apache-2.0
"""The ``check`` command: see ``sglang_fork.stack.check``."""

from __future__ import annotations

import argparse

from sglang_fork.stack.check import Report, check_stack
from sglang_fork.stack.signoff import repin

HELP = "check the patch set: series, exact apply, re-export, hooks, pins, lock"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--repin",
        action="store_true",
        help="sign off upstream's changes of pinned code, showing its diff of each",
    )


def run(args: argparse.Namespace) -> int:
    if args.repin:
        signed, diffs = repin()
        for key, diff in diffs.items():
            print(f"== {key}\n{diff}\n")
        print(f"check: {len(signed.digests)} pins signed off at {signed.version}, {len(diffs)} had changed")
        return 0
    report = check_stack()
    print_report(report)
    return 0 if report.ok else 1


def print_report(report: Report) -> None:
    """Sizes, passed items and faults, one line each."""
    width = max((len(s.name) for s in report.sizes), default=0)
    for s in report.sizes:
        print(f"{s.name:{width}}  {s.files:3} files {s.hunks:3} hunks  +{s.added} -{s.removed}")
    total = (
        sum(s.hunks for s in report.sizes),
        sum(s.added for s in report.sizes),
        sum(s.removed for s in report.sizes),
    )
    print(f"{len(report.sizes)} patches, {total[0]} hunks, +{total[1]} -{total[2]}")
    for item in report.passed:
        print(f"ok    {item}")
    for item, text in report.faults:
        print(f"FAIL  {item}: {text}")
    print("check: ok" if report.ok else f"check: {len(report.faults)} faults")
