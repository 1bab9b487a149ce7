# SPDX-License-Identifier: Apache-2.0
"""``bench serve``: launches a preset's server once an arm and round, in balanced order, and measures it by
upstream's client."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_fork import env, memory, preset
from sglang_fork.bench import dummy, machine, plumbing, served, stats, traffic
from sglang_fork.bench.client import Client
from sglang_fork.bench.load import Answer
from sglang_fork.bench.progress import Progress
from sglang_fork.bench.record import PLUMBING
from sglang_fork.errors import ForkError
from sglang_fork.launch import decide, port, process, record, serve, start, tiny
from sglang_fork.resolve import resolve

SIMULATED = "SGLANG_SIMULATE_ACC_LEN"


@dataclass(frozen=True)
class Plan:
    """What a serving run measures. ``weights`` is real, dummy, tiny or tiny-dummy."""

    preset: str
    arms: tuple[str, ...]
    concurrencies: tuple[int, ...]
    requests: int
    input_len: int
    output_len: int
    rounds: int
    weights: str
    slots: str
    accept_length: float
    trace: Path | None
    extra: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.concurrencies or min(self.concurrencies) < 1:
            raise ForkError("name at least one concurrency of 1 or more", "--concurrency 1,8")
        if self.requests < 5:
            raise ForkError(f"{self.requests} requests are too few for an interval; at least 5")
        if self.output_len < 2:
            raise ForkError("an answer of one token has no time a token; --output-len 2 or more")
        if self.accept_length and self.accept_length < 1:
            raise ForkError(f"--accept-length {self.accept_length}: a verify step accepts at least 1 token")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("preset", help="the preset to launch")
    parser.add_argument("--concurrency", default="1,2,4,8", help="users, comma-separated (default 1,2,4,8)")
    parser.add_argument("--requests", type=int, default=16, help="requests a run and user count (default 16)")
    parser.add_argument("--input-len", type=int, default=1024, help="prompt tokens (default 1024)")
    parser.add_argument("--output-len", type=int, default=256, help="generated tokens (default 256)")
    parser.add_argument("--rounds", type=int, default=2, help="servers an arm, order balanced (default 2)")
    parser.add_argument("--arms", default="stock,mega", help="stock, mega or both (default)")
    parser.add_argument("--slots", default="", help="megakernel slots of the mega arm")
    parser.add_argument("--accept-length", type=float, default=0.0, help="force this acceptance length")
    parser.add_argument("--trace", type=Path, help="replay recorded multi-turn requests, JSON lines")
    parser.add_argument("--dummy", action="store_true", help="the preset's shapes with dummy weights")
    parser.add_argument("--tiny", action="store_true", help="the tiny twin (default without a GPU)")
    parser.add_argument("--server-args", default="", help="further words for the server, space-separated")
    parser.add_argument("--out", type=Path, help="file the lines are added to")
    parser.add_argument("--dry-run", action="store_true", help="say what would be measured, measure nothing")


def plan_of(args: argparse.Namespace, gpu: bool, emulated: bool = False) -> Plan:
    """The plan that the arguments ask for; without a GPU it is the tiny twin's, a few short requests, and
    stock alone unless the kernels are emulated."""
    if preset.find(args.preset) is None:
        raise ForkError(f"unknown preset {args.preset}", "./sglang.sh list")
    try:
        concurrencies = tuple(int(n) for n in args.concurrency.split(","))
    except ValueError as error:
        raise ForkError(f"bench serve: {error}", "--concurrency 1,8") from error
    arms = tuple(args.arms.split(","))
    if not arms or set(arms) - {"stock", "mega"}:
        raise ForkError(f"arms {args.arms} are not stock, mega or both")
    small, dummies = args.tiny or not gpu, "dummy" if args.dummy else ""
    return Plan(
        preset=args.preset,
        arms=arms if gpu or emulated else ("stock",),
        concurrencies=concurrencies if gpu else tuple(sorted(set(concurrencies) & {1, 2})) or (1,),
        requests=args.requests if gpu else 5,
        input_len=args.input_len if gpu else min(args.input_len, 32),
        output_len=args.output_len if gpu else min(args.output_len, 8),
        rounds=args.rounds if gpu else 1,
        weights="-".join(filter(None, ("tiny" if small else "", dummies))) or "real",
        slots=args.slots,
        accept_length=args.accept_length,
        trace=args.trace,
        extra=tuple(args.server_args.split()),
    )


def describe(plan: Plan) -> str:
    order = ", ".join(arm for arms in stats.balanced(plan.arms, plan.rounds) for arm in arms)
    what = (
        f"the trace {plan.trace.name}"
        if plan.trace
        else f"{plan.requests} requests of {plan.input_len} + {plan.output_len} tokens"
    )
    lines = [
        f"{plan.preset}, {plan.weights} weights: servers in the order {order}",
        f"{what} at {', '.join(map(str, plan.concurrencies))} users: TTFT, TPOT, ITL, tokens/s a user, "
        "acceptance length, coverage",
    ]
    if plan.accept_length:
        lines.append(f"acceptance length forced to {plan.accept_length}: {SIMULATED}")
    return "\n".join(lines)


def run(args: argparse.Namespace, results: Path, tree: str) -> int:
    """Measure every arm and user count; returns 1 when a part of it failed. What was measured is kept."""
    gpu = env.driver_present()
    plan = plan_of(args, gpu, os.environ.get(decide.EMULATE) == "1")
    print(describe(plan))
    if args.dry_run:
        return 0
    if not gpu:
        print("no NVIDIA driver: this runs the plumbing on the tiny twin; its numbers are no results")
    out = args.out or results / "serve.jsonl"
    out = out if gpu else plumbing.file_of(out)
    runs: defaultdict[tuple[str, int], list[list[Answer]]] = defaultdict(list)
    steps: defaultdict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    lines: list[served.Served] = []
    failed: list[str] = []
    order = [arm for arms in stats.balanced(plan.arms, plan.rounds) for arm in arms]
    total = len(order) * len(plan.concurrencies)
    with process.ending_on_sigterm(), Client() as client, Progress(total, "run") as progress:
        for number, arm in enumerate(order, 1):
            with said(failed, f"{arm}'s server", progress), launched(plan, arm, progress) as (url, model):
                for users in plan.concurrencies:
                    with said(failed, f"{arm} at {users} users", progress):
                        got, counted = measured(plan, client, url, model, users)
                        steps[arm, users] += counted
                        facts = facts_of(plan, arm, users, served.coverage(steps[arm, users]), tree)
                        lines.append(served.summary([*runs[arm, users], got], facts))
                        runs[arm, users].append(got)
                        served.append(out, lines[-1])
                        progress.say(_short(lines[-1]))
                        progress.advance()
            progress.reach(number * len(plan.concurrencies))
    print(served.table(served.latest(lines)))
    print(f"lines: {out}")
    if failed:
        print(f"failed: {'; '.join(failed)}")
    return 1 if failed else 0


@contextmanager
def said(failed: list[str], what: str, progress: Progress) -> Iterator[None]:
    """Print an error of one part, note it in ``failed``, and let the next part run."""
    try:
        yield
    except ForkError as error:
        failed.append(what)
        progress.say(f"{what}: failed: {error}")


@contextmanager
def launched(plan: Plan, arm: str, progress: Progress) -> Iterator[tuple[str, Path]]:
    """A server of one arm: its address and its model folder. It is ended in the end."""
    name = f"bench-{arm}"
    shell = {k: v for k, v in os.environ.items() if k not in ("HOST", "PORT", "MEGAKERNEL", "SLOTS")}
    shell["MEGAKERNEL"] = "on" if arm == "mega" else "off"
    if plan.slots and arm == "mega":
        shell["SLOTS"] = plan.slots
    profile = env.built_profile() or "cuda"
    is_tiny = plan.weights.startswith("tiny")
    extra = ["--port", str(port.unused()), "--enable-metrics", *plan.extra]
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        if plan.weights.endswith("dummy"):
            model = dummy.write_folder(Path(folder), configuration(plan))
            # Its words are not a language's: SGLang's warm-up text would be an empty prompt.
            extra += ["--model-path", str(model), "--load-format", "dummy", "--skip-server-warmup"]
        resolution = resolve(preset.load(plan.preset), shell, extra)
        if is_tiny:
            resolution, _ = tiny.apply(resolution, profile)
        if plan.accept_length:
            os.environ[SIMULATED] = str(plan.accept_length)
        try:
            with progress.aside():
                code = start.launch(
                    resolution, profile, name, is_tiny=is_tiny, timeout_s=start.TIMEOUT_S, detach=True
                )
        finally:
            os.environ.pop(SIMULATED, None)
        if code:
            sys.exit(code)
        known = record.find(name)
        assert known is not None, "launch records what it starts"
        try:
            yield known.url, Path(known.model)
        finally:
            process.end(known.identity, serve.DRAIN_S)
            known.forget()


def configuration(plan: Plan) -> dict[str, Any]:
    """The configuration whose shapes a dummy model has: the published one, or the tiny twin's."""
    chosen = preset.load(plan.preset)
    if plan.weights == "tiny-dummy":
        return dict(json.loads((tiny.twin(chosen.family) / "config.json").read_text(encoding="utf-8")))
    return memory.config(chosen.weights.config)


def measured(
    plan: Plan, client: Client, url: str, model: Path, users: int
) -> tuple[list[Answer], Counter[str]]:
    """A warm-up, then the run: the client's answers and the steps that the server counted."""
    if plan.trace:
        sessions = traffic.read_trace(plan.trace)
    else:
        sessions = traffic.synthetic(
            count=max(plan.requests, users),
            input_len=plan.input_len,
            output_len=plan.output_len,
            vocab=vocabulary(plan, model),
            seed=users,
        )
    warm = [tuple(traffic.Turn(turn.prompt, 4) for turn in session) for session in sessions[:users]]
    client.ask(url, warm, users)
    _post(f"{url}/flush_cache")
    before = _metrics(url)
    answers = client.ask(url, sessions, users)
    return answers, served.steps(before, _metrics(url))


def vocabulary(plan: Plan, model: Path) -> int:
    """The model's vocabulary, from its folder or from the preset's published configuration."""
    file = model / "config.json"
    known = (
        json.loads(file.read_text())
        if file.is_file()
        else memory.config(preset.load(plan.preset).weights.config)
    )
    return int(known.get("text_config", known)["vocab_size"])


def facts_of(plan: Plan, arm: str, users: int, share: float, tree: str) -> dict[str, Any]:
    chosen = preset.load(plan.preset)
    notes = []
    if plan.weights.endswith("dummy"):
        notes.append("dummy weights: routing and text are what they give")
    if plan.accept_length:
        notes.append(f"acceptance length forced to {plan.accept_length}")
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "card": machine.card() or f"{PLUMBING}: no GPU",
        "family": chosen.family,
        "preset": plan.preset,
        "arm": arm,
        "slots": plan.slots if arm == "mega" else "",
        "weights": plan.weights,
        "concurrency": users,
        "input_len": 0 if plan.trace else plan.input_len,
        "output_len": 0 if plan.trace else plan.output_len,
        "coverage": share,
        "versions": machine.versions(),
        "tree": tree,
        "trace": plan.trace.name if plan.trace else "",
        "note": "; ".join(notes),
    }


def _short(line: served.Served) -> str:
    return (
        f"{line.arm} {line.concurrency} users: TPOT {line.tpot_ms:.2f} ms [{line.tpot_low_ms:.2f}, "
        f"{line.tpot_high_ms:.2f}], TTFT {line.ttft_ms:.1f} ms, {line.user_tokens_s:.1f} tokens/s a user"
    )


def _metrics(url: str) -> str:
    try:
        with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
            return str(answer.read().decode())
    except (urllib.error.URLError, OSError):
        return ""


def _post(url: str) -> None:
    """Best effort: a server that cannot flush only keeps its cache."""
    try:
        urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=30).close()
    except (urllib.error.URLError, OSError):
        return
