# SPDX-License-Identifier: Apache-2.0
"""``./sglang.sh logs``: a server's log, once or followed. Ctrl-C ends the following, not the server."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from sglang_fork.errors import ForkError
from sglang_fork.launch import ready, record

HELP = "show a server's log"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", nargs="?", help="which run (default: the only one)")
    parser.add_argument("-f", "--follow", action="store_true", help="keep printing what is added")
    parser.add_argument("-n", "--lines", type=int, default=100, help="how many of the last lines")
    parser.add_argument("--path", action="store_true", help="print where the log lies")


def run(args: argparse.Namespace) -> int:
    log = record.folder(record.chosen(args.name, "show")) / "log"
    if not log.is_file():
        raise ForkError(f"no log at {log}", "./sglang.sh status lists the runs")
    if args.path:
        print(log)
        return 0
    size = log.stat().st_size
    print(ready.LogTail(log).tail(args.lines), flush=True)
    return follow(log, size) if args.follow else 0


def follow(log: Path, offset: int) -> int:
    try:
        while True:
            with log.open("rb") as file:
                file.seek(offset)
                added = file.read()
            offset += len(added)
            sys.stdout.write(added.decode(errors="replace"))
            sys.stdout.flush()
            time.sleep(0.3)
    except KeyboardInterrupt:
        return 0
