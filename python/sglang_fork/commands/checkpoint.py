# SPDX-License-Identifier: Apache-2.0
"""``./sglang.sh checkpoint``: make the tiny checkpoints that CI and ``--tiny`` serve."""

from __future__ import annotations

import argparse
from pathlib import Path

from sglang_fork.checkpoints import make
from sglang_fork.errors import ForkError

HELP = "make the tiny checkpoints that --tiny and CI serve"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    maker = actions.add_parser("make", help="write a family's random checkpoint, the same bytes everywhere")
    maker.add_argument("family", help=f"{', '.join(make.FAMILIES)}, or all")
    maker.add_argument("--out", type=Path, help="the folder to write (default: in the state folder)")


def run(args: argparse.Namespace) -> int:
    if args.action is None:
        raise ForkError("checkpoint needs an action", "make")
    return run_make(args)


def run_make(args: argparse.Namespace) -> int:
    if args.family == "all" and args.out is not None:
        raise ForkError("--out takes one family", "leave --out away, or name the family")
    for family in make.FAMILIES if args.family == "all" else [args.family]:
        make.family_module(family)
        print(make.make(family, args.out or make.default_path(family)))
    return 0
