# SPDX-License-Identifier: Apache-2.0
"""``./sglang.sh stop``: drain and end a server that this tool started, and nothing else."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from sglang_fork.errors import ForkError
from sglang_fork.launch import process, ready, record
from sglang_fork.launch.serve import DRAIN_S

HELP = "drain and end a server that this tool started"
# SGLang's log says this every few seconds while it drains.
LEFT = re.compile(r"Remaining number of requests (\d+)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", nargs="?", help="which run (default: the only one)")
    parser.add_argument("--all", action="store_true", help="every one")
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=float, default=DRAIN_S, help="how long requests may drain"
    )


def run(args: argparse.Namespace) -> int:
    if args.all and args.name:
        raise ForkError("stop takes a name or --all, not both")
    if args.all:
        names = [known.name for known in record.all_records()]
        if not names:
            print("nothing runs")
    else:
        names = [record.chosen(args.name, "stop")]
    for name in names:
        stop(name, args.timeout)
    return 0


def stop(name: str, patience_s: float) -> None:
    """End one run. A process that only bears the recorded number is left alone."""
    known = record.find(name)
    if known is None:
        print(f"{name} does not run")
        return
    pid = known.identity.pid
    if not known.identity.alive:
        now = process.identify(pid)
        other = f"; process {pid} is another one now and was left alone" if now else ""
        print(f"{name} had ended{other}")
    else:
        print(f"draining {name} (at most {patience_s:.0f} s)", flush=True)
        if process.end(known.identity, patience_s):
            print(f"{name} drained and ended")
        else:
            print(f"{name} did not end within {patience_s:.0f} s and was killed{unfinished(known.log)}")
    known.forget()


def unfinished(log: Path) -> str:
    """What a killed server still had to do, by its log; nothing where it does not say."""
    said = LEFT.findall(ready.LogTail(log).tail(50))
    if not said or said[-1] == "0":
        return ""
    return f": {said[-1]} requests were left; it takes new ones while it drains, so end its clients first"
