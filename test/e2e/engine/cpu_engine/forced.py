# SPDX-License-Identifier: Apache-2.0
"""Drafts of a chosen quality: makes each verify step accept as many draft tokens as a test wants."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from .local import Ask, Reply, Shop
from .state import after_prefill, largest_difference, live, snapshot


@dataclass
class Plan:
    """What the drafts of a run are made from: each prompt's true continuation, and the lengths to accept."""

    truth: dict[tuple[int, ...], list[int]]
    lengths: dict[tuple[int, ...], list[int]]
    vocabulary: int
    seen: list[tuple[int, int]] = field(default_factory=list)

    def draft(self, request: Any, steps: int) -> list[int]:
        """``steps`` draft tokens for ``request``: the next length's worth right, then one wrong."""
        prompt = tuple(request.origin_input_ids)
        done = len(request.output_ids)
        right = self.truth[prompt][done : done + steps]
        length = self.lengths[prompt].pop(0) if self.lengths[prompt] else 0
        tokens = (right + [0] * steps)[:steps]
        if length < steps:
            tokens[length] = (tokens[length] + 1) % self.vocabulary
        return tokens


def shuffled_lengths(steps: int, rounds: int, seed: int) -> list[int]:
    """Every length from 0 to ``steps``, ``rounds`` times, each round in an order of its own."""
    draw = random.Random(seed)
    return [length for _ in range(rounds) for length in draw.sample(range(steps + 1), steps + 1)]


@dataclass(frozen=True)
class Outcome:
    replies: list[Reply]
    planned: list[list[int]]  # a request: draft tokens that each of its verify steps should accept
    accepted: list[list[int]]  # and did
    worst: tuple[float, str]  # the largest difference from a re-prefill's state, and whose
    compared: int
    wrong_tokens: list[str]


def run(shop: Shop, prompts: Sequence[Sequence[int]], truth: Sequence[Sequence[int]], seed: int) -> Outcome:
    """Serve ``prompts`` at once with drafts of every quality, and compare each verify step's state with the
    state that a prefill of the same sequence leaves, the draft's cache included.
    """
    worker = shop.scheduler.draft_worker.draft_worker
    steps = worker.speculative_num_steps
    keys = [tuple(prompt) for prompt in prompts]
    plan = Plan(
        truth=dict(zip(keys, map(list, truth), strict=True)),
        lengths={key: shuffled_lengths(steps, 2, seed + i) for i, key in enumerate(keys)},
        vocabulary=shop.scheduler.model_config.vocab_size,
    )
    lengths = {key: list(value) for key, value in plan.lengths.items()}
    accepted: dict[tuple[int, ...], list[int]] = {key: [] for key in keys}
    before: dict[tuple[int, ...], int] = {}
    states: dict[tuple[int, ...], tuple[int, dict[str, Tensor]]] = {}

    def watch(scheduler: Any) -> None:
        for request in live(scheduler):
            key, count = tuple(request.origin_input_ids), len(request.output_ids)
            if count == before.get(key):
                continue
            if key in before:
                accepted[key].append(count - before[key] - 1)
            before[key] = count
            sequence = (*key, *request.output_ids[:-1])
            states[sequence] = (request.output_ids[-1], snapshot(scheduler, request))

    model, batch = worker.draft_forward, []
    drafting = worker.draft

    def draft(schedule_batch: Any, **settings: Any) -> Any:
        batch[:] = schedule_batch.reqs
        return drafting(schedule_batch, **settings)

    def draft_forward(forward_batch: Any) -> Any:
        parents, scores, tokens, probabilities = model(forward_batch)
        for row, request in enumerate(batch):
            tokens[row] = tokens.new_tensor(plan.draft(request, steps))
        return parents, scores, tokens, probabilities

    shop.flush()
    worker.draft, worker.draft_forward = draft, draft_forward
    try:
        asks = [Ask(p, sum(n + 1 for n in lengths[k]) + 2) for p, k in zip(prompts, keys, strict=True)]
        replies = shop.serve(asks, watch)
    finally:
        worker.draft, worker.draft_forward = drafting, model
    worst, wrong = (0.0, ""), []
    again = after_prefill(shop, list(states))
    for (sequence, (token, state)), (expected, clean) in zip(states.items(), again, strict=True):
        worst = max(worst, largest_difference(clean, state))
        if token != expected:
            wrong.append(f"after {len(sequence)} tokens: {token}, a prefill says {expected}")
    planned = [lengths[key] for key in keys]
    return Outcome(replies, planned, [accepted[key] for key in keys], worst, len(states), wrong)
