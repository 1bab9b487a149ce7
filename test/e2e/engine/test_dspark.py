# SPDX-License-Identifier: Apache-2.0
"""DSpark on the CPU: plain greedy tokens; after every accepted length, the state of a re-prefill.

A random draft accepts almost nothing, so the drafts are replaced in the scheduler's process by the plain
continuation up to the length that a round shall accept, and by other tokens after it.
"""

from __future__ import annotations

import random

import pytest
from cpu_engine import forced_dspark
from cpu_engine.forced_dspark import DRAFT, rounds_length

pytestmark = pytest.mark.e2e

# Relative L1 error of a row of state: FP32 sums in another order, and the FP4 roundings that they may flip.
# The row of another token is off by about 1.
ROW_ERROR = 1e-2
PAGE = 256  # tokens: what the radix cache keeps whole, and a chunk of the prefill


@pytest.fixture(scope="module")
def seed() -> int:
    chosen = random.randrange(1 << 30)
    print(f"seed {chosen}")
    return chosen


@pytest.fixture(scope="module")
def prompts(seed: int) -> list[list[int]]:
    """The second is longer than the window of 128."""
    draw = random.Random(seed)
    return [[draw.randrange(3, 470) for _ in range(length)] for length in (6, 151)]


@pytest.fixture(scope="module")
def long(seed: int) -> list[int]:
    """A prompt of a whole page and a part, of odd length."""
    draw = random.Random(seed + 1)
    return [draw.randrange(3, 470) for _ in range(PAGE + 151)]


@pytest.fixture(scope="module")
def continuations(tiny, prompts, long) -> tuple[list[list[int]], list[int]]:
    """Of ``prompts`` and of ``long``, without a draft and each prompt in one chunk."""
    from cpu_engine.local import local_engine

    with local_engine("deepseek_v41", tiny("deepseek_v41")) as engine:
        short = engine.continuations(prompts, rounds_length() + DRAFT + 3)
        return short, engine.continuations([long], 8)[0]


@pytest.fixture(scope="module")
def plain(continuations) -> list[list[int]]:
    """Long enough for every accepted length in any order."""
    return continuations[0]


@pytest.fixture(scope="module")
def drafting(tiny):
    from cpu_engine.local import local_engine

    settings = {"speculative_algorithm": "DSPARK", "speculative_dspark_block_size": DRAFT}
    with local_engine("deepseek_v41", tiny("deepseek_v41"), chunked_prefill_size=PAGE, **settings) as engine:
        yield engine


def test_greedy_tokens_are_plain_decodings(drafting, prompts, plain) -> None:
    replies = drafting.generate(prompts, len(plain[0]))
    assert [reply.tokens for reply in replies] == plain
    assert all(0 < reply.verify_steps < len(plain[0]) for reply in replies), "no draft was verified"


def test_a_request_that_samples_beside_one_that_does_not(drafting, prompts, plain) -> None:
    from cpu_engine.local import Ask

    drafting.flush()
    asks = [Ask(prompts[0], 12), *(Ask(prompts[0], 12, {"temperature": 3.0}) for _ in range(3))]
    replies = [reply.tokens for reply in drafting.serve(asks)]
    assert replies[0] == plain[0][:12]
    assert len({tuple(tokens) for tokens in replies}) == 4, "sampled: not greedy, and not each other"


def test_chunks_and_a_cached_page_change_neither_tokens_nor_state(drafting, long, continuations) -> None:
    replies, errors = drafting.call(forced_dspark.cached_and_chunked, long, 8)
    assert [reply.cached for reply in replies] == [0, PAGE]
    assert [reply.tokens for reply in replies] == [continuations[1]] * 2
    assert {name: error for name, error in errors.items() if error > ROW_ERROR} == {}
    assert any(name.startswith("draft context") for name in errors)


def test_every_accepted_length_leaves_the_state_of_a_re_prefill(drafting, prompts, plain, seed) -> None:
    plan = [list(range(DRAFT + 1)) for _ in prompts]
    for i, lengths in enumerate(plan):
        random.Random(seed + i).shuffle(lengths)
    drafting.flush()
    tokens, accepted, errors = drafting.call(forced_dspark.run, prompts, plain, plan)
    for reply, wanted in zip(tokens, plain, strict=True):
        assert reply == wanted[: len(reply)]
    for lengths, wanted in zip(accepted, plan, strict=True):
        assert lengths[: len(wanted)] == wanted, "each length occurred, in the planned order"
    assert len(errors) >= len(prompts) * (DRAFT + 1)
    worst: dict[str, float] = {}
    for round_errors in errors:
        for name, error in round_errors.items():
            worst[name] = max(worst.get(name, 0.0), error)
    print(worst)
    assert {name: error for name, error in worst.items() if error > ROW_ERROR} == {}
    assert any(name.startswith("pending pair") for name in worst), "no text of odd length"
