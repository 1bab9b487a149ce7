# SPDX-License-Identifier: Apache-2.0
"""KL divergence of decode steps from the prefill path, over the likeliest tokens and one bucket for the rest.

A server decodes greedily and says each step's likeliest tokens; then it is given prompt and reply as one
new prompt and says them again from its prefill. Both are the same model at the same places, so that the
divergence measures the decode path's arithmetic. Merging the other tokens can only make it smaller.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

Likeliest = Mapping[int, float]
"""Log-probabilities of a step's likeliest tokens."""
FLOOR = 1e-9


def kl(reference: Likeliest, found: Likeliest) -> float:
    """KL(reference || found) in nats over the tokens that both name, and the rest of each."""
    shared = reference.keys() & found.keys()
    pairs = [(math.exp(reference[token]), math.exp(found[token])) for token in shared]
    rest = tuple(max(1.0 - sum(pair[side] for pair in pairs), FLOOR) for side in (0, 1))
    return max(0.0, sum(p * math.log(p / q) for p, q in (*pairs, rest) if p > 0 and q > 0))


def summary(steps: Sequence[float]) -> dict[str, float]:
    ordered = sorted(steps)
    return {
        "mean": sum(ordered) / len(ordered),
        "p99": ordered[min(len(ordered) - 1, math.ceil(0.99 * len(ordered)) - 1)],
        "max": ordered[-1],
    }
