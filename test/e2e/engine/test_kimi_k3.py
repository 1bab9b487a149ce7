# SPDX-License-Identifier: Apache-2.0
"""Kimi K3 on the CPU engine in FP32: decode against prefill, the radix cache, chunked prefill."""

from __future__ import annotations

import random

import pytest

pytestmark = pytest.mark.e2e

# Log-probabilities of decode and prefill in FP32: sums of different order, no rounding in between.
TOLERANCE = 2e-4


def prompt(length: int, seed: int = 0) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(3, 470) for _ in range(length)]


@pytest.fixture(scope="module")
def engine(tiny):
    from cpu_engine.local import local_engine

    with local_engine("kimi_k3", tiny("kimi_k3"), chunked_prefill_size=32) as running:
        yield running


def test_decode_equals_re_prefill_and_the_text_is_diverse(engine) -> None:
    from cpu_engine.rescore import rescore

    for seen in rescore(engine, [prompt(13, seed=1), prompt(3, seed=2), prompt(45, seed=3)], 24):
        assert seen.best == seen.tokens
        assert seen.error < TOLERANCE
        assert len(set(seen.tokens)) >= 16, "a reply that repeats itself proves little"


def test_a_continued_conversation_hits_the_radix_cache_and_changes_nothing(engine) -> None:
    engine.flush()
    first = prompt(20, seed=4)
    reply = engine.generate([first], 8)[0]
    assert reply.cached == 0
    longer = [*first, *reply.tokens, *prompt(5, seed=5)]
    warm = engine.generate([longer], 8)[0]
    assert warm.cached >= len(first), "the state at the end of the first turn must be found"
    engine.flush()
    cold = engine.generate([longer], 8)[0]
    assert cold.cached == 0
    assert warm.tokens == cold.tokens


def test_a_prefix_met_in_another_request_has_the_state_of_its_prefill(engine) -> None:
    """What the tree keeps at the end of a prompt is the prefill's state, not that of a later decode step."""
    engine.flush()
    short = prompt(6, seed=6)
    engine.generate([short], 8)
    longer = [*short, *prompt(7, seed=7)]
    warm = engine.generate([longer], 8)[0]
    assert warm.cached == len(short)
    engine.flush()
    assert engine.continuations([longer], 8) == [warm.tokens]


def test_a_prompt_longer_than_the_chunk_equals_the_same_prompt_in_parts(engine) -> None:
    long = prompt(100, seed=8)
    engine.flush()
    whole = engine.continuations([long], 8)
    engine.flush()
    for end in (30, 60):  # each part fits one chunk and leaves its state in the cache
        engine.continuations([long[:end]], 1)
    assert engine.continuations([long], 8) == whole


def test_requests_of_different_lengths_do_not_disturb_each_other(engine) -> None:
    batch = [prompt(length, seed=length) for length in (1, 7, 33, 64)]
    engine.flush()
    alone = [engine.continuations([p], 10)[0] for p in batch]
    engine.flush()
    assert engine.continuations(batch, 10) == alone
