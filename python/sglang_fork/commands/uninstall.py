# SPDX-License-Identifier: Apache-2.0
"""``uninstall``: remove everything that this tool made outside the checkout's own files."""

from __future__ import annotations

import argparse

from sglang_fork.build import clean
from sglang_fork.paths import state_dir

HELP = "remove the state folder: environments, patched tree, caches, logs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--discard", action="store_true", help="drop work in the patched tree that was not exported"
    )


def run(args: argparse.Namespace) -> int:
    state = state_dir()
    size = clean.remove_state(args.discard)
    print(f"uninstall: removed {state}, freed {size}")
    print("The checkout itself and uv's download cache (uv cache clean) are yours to remove.")
    return 0
