# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V4.1 on the CPU engine in FP32: decode against prefill, the radix cache, chunked prefill."""

from __future__ import annotations

import random

import pytest

pytestmark = pytest.mark.e2e

# Log-probabilities of decode and prefill in FP32. Sums differ in order; a latent next to a boundary of its
# FP4 rounding may fall on the other side of it.
TOLERANCE = 2e-3
# With more positions than the indexer keeps, such a flip may also exchange the last of the chosen ones.
TOLERANCE_SELECTED = 1e-2


def prompt(length: int, seed: int = 0) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(3, 470) for _ in range(length)]


@pytest.fixture(scope="module")
def engine(tiny):
    from cpu_engine.local import local_engine

    with local_engine(
        "deepseek_v41", tiny("deepseek_v41"), context_length=1536, chunked_prefill_size=256
    ) as running:
        yield running


def test_decode_equals_re_prefill_and_the_text_is_diverse(engine) -> None:
    from cpu_engine.rescore import rescore

    for seen in rescore(engine, [prompt(13, seed=1), prompt(3, seed=2), prompt(140, seed=3)], 24):
        assert seen.best == seen.tokens
        assert seen.error < TOLERANCE
        assert len(set(seen.tokens)) >= 16, "a reply that repeats itself proves little"


def test_decode_equals_re_prefill_where_the_indexer_selects(engine) -> None:
    """More positions than the indexer's top 512, at both compression ratios, in several chunks of prefill."""
    from cpu_engine.rescore import rescore

    for seen in rescore(engine, [prompt(1100, seed=4)], 12):
        assert seen.best == seen.tokens
        assert seen.error < TOLERANCE_SELECTED


def test_a_continued_conversation_hits_the_radix_cache_and_changes_nothing(engine) -> None:
    engine.flush()
    first = prompt(300, seed=5)
    reply = engine.generate([first], 8)[0]
    assert reply.cached == 0
    longer = [*first, *reply.tokens, *prompt(5, seed=6)]
    warm = engine.generate([longer], 8)[0]
    assert warm.cached == 256, "the first turn's whole pages"
    engine.flush()
    cold = engine.generate([longer], 8)[0]
    assert cold.cached == 0
    assert warm.tokens == cold.tokens


def test_a_prompt_longer_than_the_chunk_equals_the_same_prompt_in_parts(engine) -> None:
    long = prompt(530, seed=7)
    engine.flush()
    whole = engine.continuations([long], 8)
    engine.flush()
    for end in (256, 512):  # each part fills its pages and leaves them in the cache
        engine.continuations([long[:end]], 1)
    parts = engine.generate([long], 8)[0]
    assert parts.cached == 512
    assert [parts.tokens] == whole


def test_requests_of_different_lengths_do_not_disturb_each_other(engine) -> None:
    batch = [prompt(length, seed=length) for length in (1, 7, 33, 150)]
    engine.flush()
    alone = [engine.continuations([p], 10)[0] for p in batch]
    engine.flush()
    assert engine.continuations(batch, 10) == alone
