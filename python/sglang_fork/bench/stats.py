# SPDX-License-Identifier: Apache-2.0
"""Medians, their bootstrap intervals, and the balanced order in which arms alternate."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

RESAMPLES = 2000


@dataclass(frozen=True)
class Interval:
    """A median and the bounds of its 95 % interval."""

    median: float
    low: float
    high: float


def interval(samples: Sequence[float], seed: int = 0) -> Interval:
    """The median and its percentile-bootstrap interval (2.5 % to 97.5 %, ``RESAMPLES`` resamples, seeded).

    Raises ``ValueError`` for fewer than 5 samples: an interval of so few says nothing.
    """
    if len(samples) < 5:
        raise ValueError(f"{len(samples)} samples are too few for an interval; take at least 5")
    rng = random.Random(seed)
    medians = sorted(statistics.median(rng.choices(samples, k=len(samples))) for _ in range(RESAMPLES))
    low, high = medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES) - 1]
    median = statistics.median(samples)
    return Interval(median, min(low, median), max(high, median))


@dataclass(frozen=True)
class Verdict:
    """How a candidate compares with a baseline, by the interval's bad end.

    ``ratio`` is baseline median over candidate median; ``worst_ratio`` the baseline's low end over the
    candidate's high end. ``faster`` only when even that is above 1.
    """

    ratio: float
    worst_ratio: float

    @property
    def faster(self) -> bool:
        return self.worst_ratio > 1.0


def compare(baseline: Interval, candidate: Interval) -> Verdict:
    """The verdict on ``candidate`` against ``baseline``; both are times."""
    return Verdict(baseline.median / candidate.median, baseline.low / candidate.high)


def balanced(arms: Sequence[str], rounds: int) -> Iterator[tuple[str, ...]]:
    """Orders of the arms for each round: forward, then backward, so that drift favours none (AB BA AB BA
    ...).
    """
    forward, backward = tuple(arms), tuple(reversed(arms))
    for i in range(rounds):
        yield backward if i % 2 else forward
