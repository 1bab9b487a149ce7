# SPDX-License-Identifier: Apache-2.0
"""``lock``: make the hash locks anew, or check that they are the base's."""

from __future__ import annotations

import argparse

from sglang_fork.build.installer import ensure_uv
from sglang_fork.lock.check import require_lock, wheel_metadata
from sglang_fork.lock.resolve import make_locks
from sglang_fork.stack.wheel import fetch_base_wheel

HELP = "make the hash locks from the base wheel's requirements, or check them"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--check", action="store_true", help="only say whether the locks are those of this base"
    )
    parser.add_argument(
        "--upgrade", action="store_true", help="take the newest versions, not the locked ones"
    )


def run(args: argparse.Namespace) -> int:
    metadata = wheel_metadata(fetch_base_wheel())
    if args.check:
        require_lock(metadata)
        print(f"lock: right for sglang {metadata.version}")
        return 0
    for path in make_locks(ensure_uv(), metadata, upgrade=args.upgrade):
        print(f"lock: {path.name}")
    require_lock(metadata)
    return 0
