# SPDX-License-Identifier: Apache-2.0
"""Which experts a step's rows choose: seeded, and the same for every arm.

With dummy weights the router's own choice is arbitrary, so a benchmark sets it. Two cases: ``independent``
rows choose on their own, as unrelated requests do; ``correlated`` rows share most of their experts, as the
draft tokens of one request do. Each layer draws anew.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

CASES = ("independent", "correlated")
# Of a correlated row's experts, how many its request's first row also chose.
SHARED_FRACTION = 0.7


@dataclass(frozen=True)
class Routing:
    """``experts[layer][row]`` are the ``top_k`` distinct experts of one row, most wanted first."""

    case: str
    seed: int
    experts: tuple[tuple[tuple[int, ...], ...], ...]

    def distinct(self, layer: int) -> int:
        """Distinct experts that a layer's rows touch: each one's weights are read once."""
        return len({expert for row in self.experts[layer] for expert in row})


def draw(case: str, *, layers: int, rows: int, experts: int, top_k: int, seed: int = 0) -> Routing:
    """Draw every layer's choice. Raises ``ValueError`` for an unknown case or more choices than experts."""
    if case not in CASES:
        raise ValueError(f"routing {case!r} is not one of {', '.join(CASES)}")
    if not 1 <= top_k <= experts:
        raise ValueError(f"{top_k} of {experts} experts cannot be chosen")
    rng = random.Random(f"{case}/{layers}/{rows}/{experts}/{top_k}/{seed}")
    return Routing(case, seed, tuple(_layer(rng, case, rows, experts, top_k) for _ in range(layers)))


def _layer(rng: random.Random, case: str, rows: int, experts: int, top_k: int) -> tuple[tuple[int, ...], ...]:
    first = rng.sample(range(experts), top_k)
    chosen = [tuple(first)]
    shared = round(SHARED_FRACTION * top_k) if case == "correlated" else 0
    for _ in range(rows - 1):
        kept = rng.sample(first, shared)
        others = sorted(set(range(experts)) - set(kept))
        row = kept + rng.sample(others, top_k - shared)
        rng.shuffle(row)
        chosen.append(tuple(row))
    return tuple(chosen)
