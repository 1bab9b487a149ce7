# SPDX-License-Identifier: Apache-2.0
"""The ``rebase`` command: see ``sglang_fork.stack.rebase``."""

from __future__ import annotations

import argparse
from pathlib import Path

from sglang_fork.errors import ForkError
from sglang_fork.stack.rebase import run as rebasing
from sglang_fork.stack.rebase.report import Report

HELP = "move the patches onto another SGLang release, or onto upstream's git"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("version", nargs="?", help="a release, or 'newest'")
    parser.add_argument("--from-git", metavar="URL@REF", help="a commit of upstream's repository instead")
    parser.add_argument(
        "--dry-run", action="store_true", help="judge every patch and pin, leave nothing behind"
    )
    parser.add_argument("--continue", dest="resume", action="store_true", help="go on after a stop")
    parser.add_argument("--skip", action="store_true", help="go on without the patch that waits")
    parser.add_argument("--abort", action="store_true", help="forget the rebase in progress")
    parser.add_argument(
        "--repin", action="store_true", help="with --continue: sign off the pins shown as changed"
    )
    parser.add_argument(
        "--patches-only",
        action="store_true",
        help="no lock and no tests: write the ported patches to a folder",
    )
    parser.add_argument("--skip-tests", action="store_true", help="do not build and test on the new base")
    parser.add_argument(
        "--tests",
        nargs="+",
        default=[],
        metavar="PATH",
        help="run only these tests on the new base, and say so",
    )
    parser.add_argument("--report", type=Path, metavar="FILE", help="also write the report (Markdown) here")


def run(args: argparse.Namespace) -> int:
    going_on = args.resume or args.skip
    if sum((bool(args.version), bool(args.from_git), bool(going_on), args.abort)) != 1:
        raise ForkError("give one of VERSION, --from-git, --continue, --skip and --abort")
    if args.repin and not args.resume:
        raise ForkError("--repin goes with --continue")
    if args.tests and (args.skip_tests or args.patches_only or args.dry_run):
        raise ForkError("--tests goes with a rebase that runs tests")
    if args.abort:
        rebasing.abort()
        print("rebase: aborted; patches and tree are as they were")
        return 0
    if going_on:
        report = rebasing.resume(skip=args.skip, repin=args.repin, tests=args.tests)
    else:
        report = rebasing.start(
            args.version,
            args.from_git,
            dry_run=args.dry_run,
            patches_only=args.patches_only,
            skip_tests=args.skip_tests,
            tests=args.tests,
        )
    if args.report and report.outcomes:
        report.write(args.report)
    print_report(report)
    return 1 if report.faults else 0


def print_report(report: Report) -> None:
    """Verdicts, pins with upstream's diff, range-diff, then what is left to do."""
    width = max((len(o.name) for o in report.outcomes), default=0)
    if report.range_diff:
        print(f"{report.range_diff}\n")
    for key, diff in report.pins.items():
        print(f"== upstream changed {key}\n{diff or '(gone)'}\n")
    for outcome in report.outcomes:
        print(f"{outcome.name:{width}}  {outcome.verdict}{': ' if outcome.detail else ''}{outcome.detail}")
    for note in report.notes:
        print(f"rebase: {note}")
    for fault in report.faults:
        print(f"rebase: not green: {fault}")
