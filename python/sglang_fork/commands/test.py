# SPDX-License-Identifier: Apache-2.0
"""``test``: build the cpu profile if needed, lint, then run the tests; the last line is plain counts."""

from __future__ import annotations

import argparse
import time

from sglang_fork import env
from sglang_fork.build.run import Options, build
from sglang_fork.build.stamp import read_stamp
from sglang_fork.errors import ForkError
from sglang_fork.paths import ROOT
from sglang_fork.quality import lint
from sglang_fork.quality.suite import Counts, areas, run_pytest

HELP = "build the cpu profile if needed, lint, and run the tests (all, or those named)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths", nargs="*", help="test files, folders or pytest ids; none: linters and all tests"
    )
    parser.add_argument("-k", dest="keyword", metavar="EXPRESSION", help="only tests whose names match")
    parser.add_argument("-m", dest="marker", metavar="MARKER", help="only tests with this marker")
    parser.add_argument("-x", dest="first", action="store_true", help="stop at the first failure")
    parser.add_argument("--lint", action="store_true", help="linters and type checker alone")


def run(args: argparse.Namespace) -> int:
    started = time.monotonic()
    for path in args.paths:
        if not (ROOT / path.partition("::")[0]).exists():
            raise ForkError(f"no such test: {path}", "name files or folders under test/")
    profile = _built()
    selected = bool(args.paths or args.keyword or args.marker)
    counts = Counts() if selected else _lint(profile)
    if not args.lint:
        counts += _tests(
            args, profile, [args.paths or ["test"]] if selected else [[area] for area in areas()]
        )
    print(f"{time.monotonic() - started:.0f} s in all")
    print(counts, flush=True)
    return 1 if counts.failed or counts.passed == 0 else 0


def _built() -> str:
    """The profile to test with, brought up to date and with the tests' own packages."""
    profile = "cuda" if env.built_profile() == "cuda" else "cpu"
    before = read_stamp(profile)
    dev = before is not None and before.editable
    return build(Options(profile, dev=dev, dev_tools=True)).profile


def _lint(profile: str) -> Counts:
    counts = Counts()
    for check in lint.checks(ROOT, env.venv_dir(profile) / "bin"):
        if not check.command:
            print(f"{check.name}: skipped: {check.why}")
            counts += Counts(skipped=1)
        else:
            passed = lint.run_check(check, ROOT)
            counts += Counts(passed=int(passed), failed=int(not passed))
    return counts


def _tests(args: argparse.Namespace, profile: str, groups: list[list[str]]) -> Counts:
    options = [f"-k={args.keyword}"] * bool(args.keyword) + [f"-m={args.marker}"] * bool(args.marker)
    options += ["-x"] * args.first
    counts = Counts()
    for group in groups:
        print(f"== {' '.join(group)}", flush=True)
        counts += run_pytest([*options, *group], profile)
        if args.first and counts.failed:
            break
    return counts
