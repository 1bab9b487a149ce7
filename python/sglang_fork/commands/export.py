# SPDX-License-Identifier: Apache-2.0
"""The ``export`` command: see ``sglang_fork.stack.export``."""

from __future__ import annotations

import argparse
from pathlib import Path

from sglang_fork.errors import ForkError
from sglang_fork.stack.export import export_tree, import_commits
from sglang_fork.stack.gitseries import export_git

HELP = "turn the commits of the patched tree into patches/ and the fork's own files again"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from",
        dest="source",
        metavar="DIR",
        type=Path,
        help="take patches from another clone of the base: adds them, or replaces by Patch-Id",
    )
    parser.add_argument(
        "--git",
        metavar="DIR",
        type=Path,
        help="write the whole fork to DIR as one git am series for upstream's repository",
    )


def run(args: argparse.Namespace) -> int:
    if args.git and args.source:
        raise ForkError("give one of --from and --git")
    if args.git:
        files = export_git(args.git)
        print(f"export: {len(files)} mails; in upstream's clone: git am --3way --keep-cr {args.git}/*.patch")
        return 0
    done = import_commits(args.source) if args.source else export_tree()
    for verb, names in (("wrote", done.written), ("removed", done.removed), ("brought back", done.overlay)):
        for name in names:
            print(f"export: {verb} {name}")
    print(f"export: {done.count} patches")
    return 0
