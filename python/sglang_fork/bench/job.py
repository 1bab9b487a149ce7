# SPDX-License-Identifier: Apache-2.0
"""A job of the step benchmark: what to measure, its file, and the line that a measured case becomes."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sglang_fork.bench import routing, slices
from sglang_fork.bench.record import Measurement
from sglang_fork.bench.stats import Interval
from sglang_fork.errors import ForkError


@dataclass(frozen=True)
class Job:
    """What to measure. ``width`` is the rows a request (1 for decode); ``requests`` the batch sizes."""

    preset: str
    family: str
    production: dict[str, Any]
    tp: int
    layers: int
    weights: str
    kv: str
    mode: str
    width: int
    requests: tuple[int, ...]
    context: int
    cases: tuple[str, ...] = routing.CASES
    rounds: int = 6
    replays: int = 20
    server_args: dict[str, Any] = field(default_factory=dict)
    slots: str = ""
    profile: bool = True
    tune: bool = True
    lists: str = ""
    tree: str = "unknown"
    note: str = ""

    def __post_init__(self) -> None:
        if self.rounds < 5 or self.replays < 20:
            raise ForkError(f"{self.rounds} x {self.replays} replays are too few; at least 5 x 20")
        if not self.requests or min(self.requests) < 1:
            raise ForkError("name at least one batch size of 1 or more")
        if max(self.requests) * self.width > 64:
            raise ForkError(f"{max(self.requests)} requests of {self.width} rows are more than 64 rows")

    def slice(self) -> slices.Slice:
        return slices.build(
            self.family, self.production, tp=self.tp, layers=self.layers, weights=self.weights
        )


def read_jobs(path: Path) -> list[Job]:
    jobs = []
    for values in json.loads(path.read_text(encoding="utf-8")):
        values |= {"requests": tuple(values["requests"]), "cases": tuple(values["cases"])}
        jobs.append(Job(**values))
    return jobs


def write_jobs(path: Path, jobs: Sequence[Job]) -> None:
    path.write_text(json.dumps([asdict(job) for job in jobs]), encoding="utf-8")


def measurement(
    job: Job,
    rank: slices.Slice,
    drawn: routing.Routing,
    *,
    case: str,
    arm: str,
    whole: Interval,
    layers: Interval,
    card: str,
    bandwidth: tuple[float, float],
    versions: Mapping[str, str],
    choices: Mapping[str, str] | None = None,
    note: str = "",
) -> Measurement:
    """One arm's line. ``arm`` is ``stock``, ``mega`` or ``mega:SLOTS``; ``whole`` times layers and head,
    ``layers`` the layers alone; ``bandwidth`` is (copy, read) in TB/s, 0 where none was measured."""
    kind, _, listed = arm.partition(":")
    step_bytes, layer_bytes = rank.step_bytes(sum(drawn.distinct(i) for i in range(rank.moe_layers)))
    copy, read = bandwidth
    return Measurement(
        date=time.strftime("%Y-%m-%d", time.gmtime()),
        card=card,
        family=rank.family,
        preset=job.preset,
        slice=rank.name,
        layers=rank.layers,
        weights=job.weights,
        kv=job.kv,
        mode=job.mode,
        rows=len(drawn.experts[0]),
        routing=case,
        context=job.context,
        arm=kind,
        slots=listed or (job.slots if kind == "mega" else ""),
        median_us=whole.median,
        ci_low_us=whole.low,
        ci_high_us=whole.high,
        layers_median_us=layers.median,
        layers_ci_low_us=layers.low,
        layers_ci_high_us=layers.high,
        launches_per_layer=0.0,
        weight_bytes=step_bytes,
        layers_weight_bytes=layer_bytes,
        copy_tb_s=copy,
        read_tb_s=read,
        fraction_of_copy=layer_bytes / layers.median / 1e6 / copy if copy else 0.0,
        versions=dict(versions),
        tree=job.tree,
        choices=dict(choices or {}),
        note="; ".join(filter(None, (job.note, note))),
    )
