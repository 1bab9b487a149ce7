# SPDX-License-Identifier: Apache-2.0
"""The step benchmark without a GPU: the same job, slice, routing, order, intervals and lines, around a
stand-in for the step. Its lines are marked as plumbing and are no results."""

from __future__ import annotations

import itertools
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

from sglang_fork.bench import machine, record, routing, slices, stats
from sglang_fork.bench.job import Job, measurement
from sglang_fork.bench.progress import Progress
from sglang_fork.bench.slot_lists import slot_lists
from sglang_fork.paths import ROOT, state_dir

CARD = f"{record.PLUMBING}: no GPU"
# Bytes that the stand-in reads for each gigabyte that the step would.
SCALE = 1e-6


def file_of(out: Path) -> Path:
    """Where plumbing lines go in place of ``out``: never among the committed results."""
    folder = state_dir() / "bench" if out.resolve().is_relative_to(ROOT / "test") else out.parent
    return folder / f"plumbing-{out.name}"


def stand_in(count: float) -> Callable[[], object]:
    """Something that takes longer for more bytes."""
    buffer = bytes(max(64, round(count * SCALE)))
    return lambda: zlib.crc32(buffer)


def alternate(arms: Mapping[str, Callable[[], object]], rounds: int, replays: int) -> dict[str, list[float]]:
    """As ``timing.alternate``, by the host's clock."""
    samples: dict[str, list[float]] = {name: [] for name in arms}
    for order in stats.balanced(tuple(arms), rounds):
        for name in order:
            for _ in range(replays):
                began = time.perf_counter()
                arms[name]()
                samples[name].append(max(1e-3, (time.perf_counter() - began) * 1e6))
    return samples


def arms_of(job: Job, rank: slices.Slice) -> list[str]:
    """The arms that a GPU would run, by the slots that the slice knows the bytes of."""
    if not job.server_args.get("enable_nvidia_megakernel"):
        return ["stock"]
    bound = [slot for slot in rank.parts if not job.slots or slot in job.slots.split(",")]
    parts = slot_lists(dict.fromkeys(bound, ()), bound, job.lists)
    return ["stock", "mega", *(f"mega:{','.join(part)}" for part in parts)]


def run(job: Job, out: Path) -> list[record.Measurement]:
    """Every case of ``job`` around the stand-in; the lines, appended to ``out``."""
    rank = job.slice()
    lines = []
    with Progress(len(job.requests) * len(job.cases), "case") as progress:
        for requests, case in itertools.product(sorted(job.requests), job.cases):
            rows = requests * job.width
            drawn = routing.draw(
                case, layers=rank.moe_layers, rows=rows, experts=rank.experts, top_k=rank.top_k
            )
            whole, layers = rank.step_bytes(sum(drawn.distinct(i) for i in range(rank.moe_layers)))
            arms = arms_of(job, rank)
            parts = {"full": whole, "layers": layers}
            runs = {f"{arm}:{part}": stand_in(n) for arm in arms for part, n in parts.items()}
            samples = alternate(runs, job.rounds, job.replays)
            for arm in arms:
                line = measurement(
                    job,
                    rank,
                    drawn,
                    case=case,
                    arm=arm,
                    whole=stats.interval(samples[f"{arm}:full"]),
                    layers=stats.interval(samples[f"{arm}:layers"]),
                    card=CARD,
                    bandwidth=(0.0, 0.0),
                    versions=machine.versions(),
                    note="a stand-in ran in place of the step",
                )
                record.append(out, line)
                lines.append(line)
            progress.advance()
    return lines
