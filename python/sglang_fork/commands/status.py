# SPDX-License-Identifier: Apache-2.0
"""``./sglang.sh status``: the servers that this tool started."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from sglang_fork.launch import preflight, ready, record

HELP = "show the servers that this tool started"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="machine-readable")


def run(args: argparse.Namespace) -> int:
    records = record.all_records()
    states = [(r, state(r)) for r in records]
    if args.json:
        print(json.dumps([{**asdict(r), "state": s} for r, s in states], indent=1))
        return 0
    if not records:
        print("nothing runs")
        return 0
    for r, s in states:
        print(f"{r.name}  {s}  {r.url}  process {r.identity.pid}  {r.age() / 60:.0f} min  {r.megakernel}")
        print(f"  model {r.model}  log {r.log}")
    return 0


def state(known: record.Record) -> str:
    """gone, starting, serving, or up but not answering. An API key of the environment is used."""
    if not known.identity.alive:
        return "gone"
    key = preflight.key_of_environment()
    if ready.serves(known.url, known.node_rank, key):
        return "serving" if known.node_rank == 0 else f"node {known.node_rank} up"
    return "not answering" if known.ready_at else f"starting ({stage(known)})"


def stage(known: record.Record) -> str:
    tail = ready.LogTail(known.log)
    tail.advance()
    return tail.stage
