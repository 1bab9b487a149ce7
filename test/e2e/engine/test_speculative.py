# SPDX-License-Identifier: Apache-2.0
"""Speculative decoding on the CPU: plain greedy tokens; a re-prefill's state after every accepted length."""

from __future__ import annotations

import random

import pytest

pytestmark = pytest.mark.e2e

PROMPT_LENGTHS = (5, 83)
STATE_ERROR = 2e-5  # of each buffer's largest value: FP32, sums in another order


@pytest.fixture(scope="module")
def seed() -> int:
    """Fixed: two tokens of random weights, or two keys of an indexer, may tie within FP32's rounding."""
    return 20261130


@pytest.fixture(scope="module")
def prompts(seed: int) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(3, 470) for _ in range(length)] for length in PROMPT_LENGTHS]


DRAFTS = {
    "qwen3_5-6": ("qwen3_5", 6),
    "glm_moe_dsa-3": ("glm_moe_dsa", 3),
    "glm_moe_dsa-5": ("glm_moe_dsa", 5),
}


@pytest.fixture(scope="module", params=DRAFTS)
def draft(request, engines):
    family, steps = DRAFTS[request.param]
    return engines(family), engines(family, steps), steps


def tokens_of(steps: int) -> int:
    """Enough for two rounds of every accepted length."""
    return 2 * sum(range(1, steps + 2)) + 2


def test_greedy_tokens_are_plain_decodings(draft, prompts) -> None:
    plain, drafting, steps = draft
    plain.flush()
    drafting.flush()
    wanted = plain.continuations(prompts, tokens_of(steps))
    replies = drafting.generate(prompts, tokens_of(steps))
    assert [reply.tokens for reply in replies] == wanted
    assert all(0 < reply.verify_steps < tokens_of(steps) for reply in replies), "no draft was verified"


def test_every_accepted_length_leaves_the_state_of_a_re_prefill(draft, prompts, seed) -> None:
    from cpu_engine import forced

    plain, drafting, steps = draft
    plain.flush()
    truth = plain.continuations(prompts, tokens_of(steps) + steps)
    outcome = drafting.call(forced.run, prompts, truth, seed)
    assert outcome.accepted == outcome.planned
    assert all(set(lengths) == set(range(steps + 1)) for lengths in outcome.accepted)
    for reply, wanted in zip(outcome.replies, truth, strict=True):
        assert reply.tokens == wanted[: tokens_of(steps)]
    assert outcome.wrong_tokens == []
    assert outcome.compared >= 2 * steps
    assert outcome.worst[0] <= STATE_ERROR, outcome.worst
