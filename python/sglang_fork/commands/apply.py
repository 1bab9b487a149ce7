# SPDX-License-Identifier: Apache-2.0
"""The ``apply`` command: see ``sglang_fork.stack.apply``."""

from __future__ import annotations

import argparse

from sglang_fork.stack.apply import apply_stack

HELP = "make the patched tree: base wheel, patches, the fork's own files"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--discard",
        action="store_true",
        help="drop unexported work in the patched tree (kept under refs/discarded/)",
    )


def run(args: argparse.Namespace) -> int:
    tree = apply_stack(discard=args.discard)
    state = "applied" if tree.changed else "up to date"
    print(f"apply: {state}: {tree.patch_count} patches on sglang {tree.base_version} in {tree.path}")
    return 0
