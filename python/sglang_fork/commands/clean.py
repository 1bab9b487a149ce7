# SPDX-License-Identifier: Apache-2.0
"""``clean``: remove what no current environment needs."""

from __future__ import annotations

import argparse

from sglang_fork import env
from sglang_fork.build import clean
from sglang_fork.paths import state_dir

HELP = "remove old environments, wheels and scratch, and say how much that freed"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--caches", action="store_true", help="the JIT caches too")
    parser.add_argument("--all", action="store_true", help="all that can be made again, current or not")
    parser.add_argument("--dry-run", action="store_true", help="only say what would go")


def run(args: argparse.Namespace) -> int:
    paths = clean.everything() if args.all else clean.outdated()
    if args.caches and not args.all and env.cache_dir().exists():
        paths.append(env.cache_dir())
    for path in paths:
        print(f"  {path.relative_to(state_dir())}")
    if args.dry_run:
        print(f"clean: would free {clean.measure(paths)}")
    else:
        print(f"clean: freed {clean.remove(paths)}")
    return 0
