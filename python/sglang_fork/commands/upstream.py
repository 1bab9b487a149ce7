# SPDX-License-Identifier: Apache-2.0
"""The ``upstream`` command: see ``sglang_fork.stack.upstream``."""

from __future__ import annotations

import argparse

from sglang_fork.stack.upstream import status

HELP = "where every patch stands with upstream, and which can be dropped"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=["status"])
    parser.add_argument("release", nargs="?", help="a release, or 'newest' (default: the pinned base)")


def run(args: argparse.Namespace) -> int:
    label, standings = status(args.release)
    for standing in standings:
        print(f"{standing.name}\n  upstream:  {standing.status}\n  drop when: {standing.drop_when}")
        print(f"  on {label}: {standing.verdict}{'; all its lines are there' if standing.contained else ''}")
    drop = [s.name for s in standings if s.contained or s.verdict == "holds"]
    print(f"upstream: {len(standings)} patches, can be dropped on {label}: {', '.join(drop) or 'none'}")
    return 0
