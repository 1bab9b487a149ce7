# SPDX-License-Identifier: Apache-2.0
"""Measure: the captured step of a rank slice, a served preset, and reports of what was measured."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

from sglang_fork import memory, paths, preset
from sglang_fork.bench import (
    baselines,
    bisect,
    caches,
    machine,
    plumbing,
    record,
    report,
    routing,
    serve,
    served,
    slices,
    slot_times,
    status,
)
from sglang_fork.bench.job import Job, write_jobs
from sglang_fork.bench.stock import baseline
from sglang_fork.env import built_profile, cache_dir, driver_present, process_env, venv_python
from sglang_fork.errors import ForkError

HELP = "measure a step of a rank slice or a served preset, report what was measured"

RESULTS = paths.ROOT / "test" / "bench" / "results"
LAYERS = 24


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parts = parser.add_subparsers(dest="part", required=True, metavar="PART")
    step = parts.add_parser("step", help="the captured decode or verify step of one rank's slice")
    step.add_argument("preset", help="whose model and rank count to slice")
    step.add_argument("--mode", choices=("decode", "verify"), default="decode")
    step.add_argument("--requests", default="1,8", help="batch sizes, comma-separated (default 1,8)")
    step.add_argument("--width", type=int, help="rows a request in a verify step (default: the family's)")
    step.add_argument("--layers", type=int, default=LAYERS, help=f"layers of the slice (default {LAYERS})")
    step.add_argument("--whole", action="store_true", help="the whole model on one GPU, no slice")
    step.add_argument("--weights", choices=slices.WEIGHTS, help="weights (default: the family's)")
    step.add_argument("--kv", help="KV cache dtype (default: the family's)")
    step.add_argument("--context", type=int, help="tokens before the step (default: the family's)")
    step.add_argument("--routing", default=",".join(routing.CASES), help="cases: independent, correlated")
    step.add_argument("--slots", help="megakernel slots of the mega arm (default: its default slots)")
    step.add_argument("--ablate", action="store_true", help="further arms, each without one slot")
    step.add_argument("--stock-only", action="store_true", help="do not build the megakernel")
    step.add_argument("--server-args", default="{}", help="JSON of further SGLang arguments")
    step.add_argument("--out", type=Path, default=RESULTS / "step.jsonl", help="file the lines are added to")
    step.add_argument("--note", help="what the lines say of this run (default: the family's)")
    step.add_argument("--dry-run", action="store_true", help="say what would be measured, measure nothing")
    kernels = parts.add_parser("kernels", help="each slot against what it replaces and its byte floor")
    kernels.add_argument("preset", help="whose model and rank count to slice")
    kernels.add_argument("--requests", default="1,8", help="batch sizes, comma-separated (default 1,8)")
    kernels.add_argument("--slots", help="the slots to measure (default: every one with a kernel)")
    kernels.add_argument("--whole", action="store_true", help="the whole model on one GPU, no slice")
    kernels.add_argument("--server-args", default="{}", help="JSON of further SGLang arguments")
    kernels.add_argument("--out", type=Path, default=RESULTS / "kernels.jsonl", help="file of the lines")
    kernels.add_argument("--dry-run", action="store_true", help="say what would be measured")
    stock = parts.add_parser("baselines", help="every stock baseline, each within its time limit")
    stock.add_argument("names", nargs="*", metavar="NAME", help="default: all, longest start first")
    stock.add_argument("--total", type=float, default=float("inf"), metavar="SECONDS", help="limit of all")
    stock.add_argument("--out", type=Path, default=RESULTS / "step.jsonl", help="file of the lines")
    stock.add_argument("--dry-run", action="store_true", help="say what would be measured")
    cache = parts.add_parser("cache", help="pack this machine's JIT caches, or unpack another's")
    cache.add_argument("words", nargs=argparse.REMAINDER, help="export FILE | import FILE [--force]")
    serve.add_arguments(parts.add_parser("serve", help="a preset's server, through a streaming client"))
    bisecting = parts.add_parser("bisect-slots", help="the megakernel slot that breaks or slows a command")
    bisecting.add_argument("preset", help="whose megakernel's slots")
    bisecting.add_argument("--metric", default="", help="pattern with one group: a number, lower is better")
    bisecting.add_argument("--tolerance", type=float, default=0.05, help="how much worse is bad (0.05)")
    bisecting.add_argument("command", nargs=argparse.REMAINDER, help="-- CMD; it sees the list in SLOTS")
    report = parts.add_parser("report", help="Markdown tables and plots of the results")
    report.add_argument("files", nargs="*", type=Path, help="default: every file of test/bench/results")
    report.add_argument("--plots", type=Path, help="folder for PNG plots (needs matplotlib)")
    page = parts.add_parser("status", help="what is known of each slot, width and architecture, by records")
    page.add_argument(
        "--kernels", type=Path, metavar="FILE", help="take kernels.json of `build --kernels` in"
    )
    page.add_argument("--write", action="store_true", help="write test/bench/STATUS.md in place of printing")


def run(args: argparse.Namespace) -> int:
    if args.part == "serve":
        return serve.run(args, RESULTS, machine.tree())
    if args.part == "cache":
        return caches.run(args.words, cache_dir(), machine.versions())
    if args.part == "kernels":
        return _kernels(args)
    if args.part == "baselines":
        return _baselines(args)
    if args.part == "status":
        return _status(args)
    if args.part == "bisect-slots":
        found = preset.find(args.preset)
        if found is None:
            raise ForkError(f"unknown preset {args.preset}", "./sglang.sh list")
        words = args.command[1:] if args.command[:1] == ["--"] else args.command
        return bisect.run(preset.load(found).architecture, words, args.metric, args.tolerance)
    return _report(args) if args.part == "report" else _step(args)


def job_of(args: argparse.Namespace) -> Job:
    """The job that the arguments ask for. Raises ``ForkError`` for what cannot be sliced."""
    found = preset.find(args.preset)
    if found is None:
        raise ForkError(f"unknown preset {args.preset}", "./sglang.sh list")
    chosen = preset.load(found)
    try:
        server_args = dict(json.loads(args.server_args))
        requests = tuple(int(n) for n in args.requests.split(","))
    except ValueError as error:
        raise ForkError(
            f"bench step: {error}", "--requests 1,8 --server-args '{\"page_size\": 64}'"
        ) from error
    cases = tuple(args.routing.split(","))
    if unknown := set(cases) - set(routing.CASES):
        raise ForkError(f"unknown routing {', '.join(sorted(unknown))}", f"cases: {', '.join(routing.CASES)}")
    published = memory.config(chosen.weights.config)
    production = published.get("text_config", published)
    stock = baseline(chosen.family)
    if args.mode == "verify" and not (args.width or stock.width):
        raise ForkError(f"{chosen.family} is served without a draft", "--mode decode, or name --width")
    kv = args.kv or stock.kv
    if kv != "bf16":
        server_args.setdefault("kv_cache_dtype", kv)
    server_args = {**stock.server_args, **server_args}
    if not args.stock_only:
        server_args.setdefault("enable_nvidia_megakernel", True)
    whole = args.whole
    job = Job(
        preset=chosen.name,
        family=chosen.family,
        production=production,
        tp=1 if whole else _ranks(chosen),
        layers=production["num_hidden_layers"] if whole else args.layers,
        weights=args.weights or stock.weights,
        kv=kv,
        mode=args.mode,
        width=1 if args.mode == "decode" else args.width or stock.width,
        requests=requests,
        context=args.context or stock.context,
        cases=cases,
        server_args=server_args,
        slots=args.slots or "",
        lists="without" if args.ablate else "",
        tree=machine.tree(),
        note=args.note or stock.note,
    )
    job.slice()
    return job


def _ranks(chosen: preset.Preset) -> int:
    return int(str(chosen.flags["tp-size"].value)) if "tp-size" in chosen.flags else 1


def describe(job: Job) -> str:
    """What a job measures, in words."""
    rank = job.slice()
    widest = max(job.requests) * job.width
    lines = [
        f"{rank.family} {rank.name}: {rank.layers} layers, {job.weights} experts, KV {job.kv}, "
        f"context {job.context}",
        f"{job.mode} steps of {', '.join(str(n * job.width) for n in sorted(job.requests))} rows; "
        f"routing {', '.join(job.cases)}; {job.rounds} rounds of {job.replays} L2-cold replays an arm",
    ]
    for case in job.cases:
        drawn = routing.draw(
            case, layers=rank.moe_layers, rows=widest, experts=rank.experts, top_k=rank.top_k
        )
        distinct = sum(drawn.distinct(i) for i in range(rank.moe_layers))
        whole, layers = rank.step_bytes(distinct)
        lines.append(
            f"{case}: {widest} rows read {layers / 1e9:.2f} GB of layer weights, {whole / 1e9:.2f} GB with "
            f"the head ({distinct / rank.moe_layers:.0f} of {rank.experts} experts a layer)"
        )
    return "\n".join(lines)


def _step(args: argparse.Namespace) -> int:
    job = job_of(args)
    print(describe(job))
    if args.dry_run:
        return 0
    return _work(job, args.out)


def parsed_job(words: str) -> Job:
    """The job of ``bench step WORDS``."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return job_of(parser.parse_args(["step", *shlex.split(words)]))


def _baselines(args: argparse.Namespace) -> int:
    chosen = baselines.named(args.names)
    for one in chosen:
        print(f"{one.name}, at most {one.limit_s:.0f} s:", flush=True)
        for words in one.steps:
            print(f"  ./sglang.sh bench step {words}")
    if args.dry_run:
        return 0
    if not driver_present():
        for one in chosen:
            for words in one.steps:
                plumbing.run(parsed_job(words), plumbing.file_of(args.out))
        print(f"no NVIDIA driver: the plumbing ran, no results; lines: {plumbing.file_of(args.out)}")
        return 0
    worker, environment = _worker()
    return min(1, baselines.run(chosen, args.out, parsed_job, worker, environment, args.total))


def _kernels(args: argparse.Namespace) -> int:
    words = [args.preset, "--requests", args.requests, "--routing", "independent"]
    words += ["--server-args", args.server_args, *(["--whole"] if args.whole else [])]
    job = parsed_job(shlex.join(words))
    if not (slots := args.slots or baseline(job.family).slots):
        raise ForkError(
            f"no slot of {job.family} has a kernel", f"./sglang.sh bench step {job.preset} --stock-only"
        )
    job = replace(job, lists="alone", slots=slots)
    print(describe(job))
    if args.dry_run:
        return 0
    code = _work(job, args.out)
    if args.out.is_file():
        print(slot_times.table(slot_times.slot_times(record.load([args.out]), slot_bytes(job))))
    return code


def slot_bytes(job: Job) -> dict[tuple[str, int, str], int]:
    """Weight bytes of each slot that a slice names: (slot, rows, routing) -> bytes."""
    rank = job.slice()
    out = {}
    for requests in job.requests:
        for case in job.cases:
            rows = requests * job.width
            drawn = routing.draw(
                case, layers=rank.moe_layers, rows=rows, experts=rank.experts, top_k=rank.top_k
            )
            experts = rank.expert_bytes * sum(drawn.distinct(i) for i in range(rank.moe_layers))
            for slot, dense in rank.parts.items():
                out[slot, rows, case] = dense + (experts if slot == "moe" else 0)
    return out


def _work(job: Job, out: Path) -> int:
    """Run the worker; without a GPU the plumbing, into a file of its own."""
    if not driver_present():
        out = plumbing.file_of(out)
        print("no NVIDIA driver: this runs the plumbing around a stand-in; its numbers are no results")
        print(report.table(plumbing.run(job, out)))
        print(f"lines: {out}")
        return 0
    worker, environment = _worker()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        spec = Path(folder) / "job.json"
        write_jobs(spec, [job])
        return subprocess.run([*worker, str(spec), str(out)], env=environment, check=False).returncode


def _worker() -> tuple[list[str], dict[str, str]]:
    """The worker's command in the built environment, and its variables."""
    variables = process_env(built_profile() or "cuda") | machine.tool_path()
    return [str(venv_python()), "-P", "-m", "sglang_fork.bench.step"], os.environ | variables


def _status(args: argparse.Namespace) -> int:
    if args.kernels is not None:
        if not args.kernels.is_file():
            raise ForkError(f"no such file: {args.kernels}", "./sglang.sh build --kernels writes it")
        today = datetime.date.today().isoformat()
        print(f"{status.take(args.kernels, RESULTS, today, machine.tree())} kernels on record")
    if args.write:
        status.PAGE.write_text(status.page(RESULTS), encoding="utf-8")
    else:
        print(status.page(RESULTS), end="")
    return 0


def _report(args: argparse.Namespace) -> int:
    files = args.files or sorted([*RESULTS.glob("step*.jsonl"), *RESULTS.glob("serve*.jsonl")])
    if missing := [f for f in files if not f.is_file()]:
        raise ForkError(f"no such file: {', '.join(map(str, missing))}")
    lines = list(record.load(f for f in files if not f.name.startswith("serve")))
    print(report.render(lines))
    if of_servers := served.latest(served.load(f for f in files if f.name.startswith("serve"))):
        print(f"\n# Served\n\n{served.table(of_servers)}")
    if args.plots is not None:
        for path in report.plot(lines, args.plots):
            print(f"wrote {path}")
    return 0
