# SPDX-License-Identifier: Apache-2.0
"""``./sglang.sh eval PRESET``: accuracy of a server, and of the megakernel on against off."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

from sglang_fork.errors import ForkError
from sglang_fork.evaluation import gsm8k, report, serving, tasks
from sglang_fork.evaluation.client import Server
from sglang_fork.paths import state_dir

HELP = "GSM8K, pass keys, KL of decode from prefill; --compare: the megakernel on against off"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("preset", help="the preset to start, or whose server --url is")
    parser.add_argument("--url", help=f"a running server, not started here (or {serving.URL})")
    parser.add_argument("--off-url", help="with --url: one with the megakernel off, to compare it with")
    parser.add_argument("--compare", action="store_true", help="start it twice, megakernel on and off")
    parser.add_argument("--tiny", action="store_true", help="the preset's tiny twin")
    parser.add_argument("--on", metavar="MACHINE", help="the preset's variant for another machine")
    parser.add_argument(
        "--gsm8k", type=Path, metavar="FILE", help="GSM8K's test.jsonl; left out where absent"
    )
    parser.add_argument("--questions", default="200", help="of GSM8K: a number or all")
    parser.add_argument("--tokens", type=int, default=400, help="of a GSM8K answer at most")
    parser.add_argument("--passkeys", type=int, default=20, help="how many to hide; 0: none")
    parser.add_argument(
        "--filler", type=int, default=100, help="repeats of the text around a pass key, 24 tokens each"
    )
    parser.add_argument("--kl", type=int, default=6, help="prompts for the divergence; 0: none")
    parser.add_argument("--kl-tokens", type=int, default=32, help="decode steps of each")
    parser.add_argument("--parallel", type=int, default=8, help="requests at a time")
    parser.add_argument("--timeout", type=float, default=3600.0, help="seconds until a server must be ready")
    parser.add_argument("--out", type=Path, help=f"folder for results and logs (or {serving.LOGS})")


def run(args: argparse.Namespace) -> int:
    url = args.url or os.environ.get(serving.URL)
    if args.off_url and not url:
        raise ForkError("--off-url needs --url, the server with the megakernel on")
    if url and args.compare:
        raise ForkError("--compare starts servers itself", "compare running ones with --url and --off-url")
    questions = gsm8k.load(args.gsm8k, count_of(args.questions)) if args.gsm8k else []
    logs = args.out or Path(
        os.environ.get(serving.LOGS) or state_dir() / "eval" / time.strftime("%Y%m%d-%H%M%S")
    )
    logs.mkdir(parents=True, exist_ok=True)
    choice = serving.Choice(args.preset, args.tiny, args.on, args.timeout)
    outcomes: dict[str, tasks.Outcome] = {}
    paths: dict[str, str] = {}
    if url:
        given = {"on": url, "off": args.off_url} if args.off_url else {"server": url}
        for name, address in given.items():
            outcomes[name], paths[name] = ask(Server(address, args.parallel), args, questions), address
    else:
        for mode in ("on", "off") if args.compare else (None,):
            with serving.started(choice, mode, logs) as (server, path):
                asked = Server(server.url, args.parallel)
                outcomes[mode or "server"], paths[mode or "server"] = ask(asked, args, questions), path
    result: dict[str, Any] = {
        "preset": args.preset,
        "servers": {name: {"path": paths[name], **report.figures(o)} for name, o in outcomes.items()},
    }
    told = [
        line
        for name, outcome in outcomes.items()
        for line in report.lines(f"{name} ({paths[name]})", outcome)
    ]
    if {"on", "off"} <= outcomes.keys():
        result["mcnemar"] = report.comparison(outcomes["on"], outcomes["off"])
        told += report.comparison_lines(result["mcnemar"])
    (logs / "eval.json").write_text(json.dumps(result, indent=1) + "\n")
    print("\n".join([*told, f"results and logs: {logs}"]))
    return 0


def ask(server: Server, args: argparse.Namespace, questions: list[gsm8k.Question]) -> tasks.Outcome:
    outcome = tasks.Outcome()
    if questions:
        outcome.right["gsm8k"] = tasks.ask_gsm8k(server, questions, args.tokens)
    if args.passkeys:
        outcome.right["passkey"] = tasks.ask_passkeys(server, args.passkeys, args.filler)
    if args.kl:
        outcome.kl = tasks.ask_divergence(server, args.kl, args.kl_tokens)
    return outcome


def count_of(words: str) -> int | None:
    """``all`` or a positive number of questions."""
    if words == "all":
        return None
    if words.isdigit() and int(words) > 0:
        return int(words)
    raise ForkError(f"--questions {words} is neither a number nor all")
