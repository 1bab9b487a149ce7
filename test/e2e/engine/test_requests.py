# SPDX-License-Identifier: Apache-2.0
"""What a request meets in the CPU's scheduler: cache hits, chunks, grammars, logprobs, aborts, retraction.

Each engine's pool holds 1280 tokens and its prompts are computed in chunks of 64; see ``engines``.
"""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

ENGINES = {
    "qwen3_5-plain": ("qwen3_5", 0),
    "qwen3_5-drafting": ("qwen3_5", 6),
    "glm_moe_dsa-plain": ("glm_moe_dsa", 0),
    "glm_moe_dsa-drafting": ("glm_moe_dsa", 3),
    "kimi_k3-plain": ("kimi_k3", 0),
}
LOGPROB_ERROR = 2e-4  # FP32: a decode step's sums in another order than the prefill's


@pytest.fixture(scope="module", params=ENGINES)
def engine(request, engines) -> Any:
    return engines(*ENGINES[request.param])


@pytest.fixture
def draw(request) -> random.Random:
    """The same prompts in every run: two tokens of random weights may tie within FP32's rounding."""
    return random.Random(request.node.originalname)


def prompt(draw: random.Random, length: int) -> list[int]:
    return [draw.randrange(3, 470) for _ in range(length)]


def ask(tokens: list[int], count: int, **settings: Any) -> Any:
    from cpu_engine.local import Ask

    return Ask(tokens, count, **settings)


def test_decode_equals_re_prefill(engine, draw) -> None:
    from cpu_engine.rescore import re_prefill_mismatches

    assert re_prefill_mismatches(engine, [prompt(draw, 13), prompt(draw, 70)], 12) == []


def test_a_continued_conversation_hits_the_radix_cache_and_changes_nothing(engine, draw) -> None:
    engine.flush()
    first = prompt(draw, 130)
    reply = engine.generate([first], 8)[0]
    assert reply.cached == 0
    longer = [*first, *reply.tokens, *prompt(draw, 5)]
    warm = engine.generate([longer], 8)[0]
    assert 128 <= warm.cached < len(longer)
    engine.flush()
    cold = engine.generate([longer], 8)[0]
    assert cold.cached == 0 and warm.tokens == cold.tokens


def test_a_prompt_of_several_chunks_equals_the_same_prompt_in_parts(engine, draw) -> None:
    long = prompt(draw, 200)
    engine.flush()
    whole = engine.serve([ask(long, 8, logprobs=True)])[0]
    engine.flush()
    for end in (64, 128):  # each part is one chunk, whose state the next finds in the cache
        engine.continuations([long[:end]], 1)
    parts = engine.generate([long], 8)[0]
    assert parts.tokens == whole.tokens


def test_requests_of_different_lengths_do_not_disturb_each_other(engine, draw) -> None:
    batch = [prompt(draw, length) for length in (1, 7, 33, 90)]
    engine.flush()
    alone = [engine.continuations([each], 10)[0] for each in batch]
    engine.flush()
    assert engine.continuations(batch, 10) == alone


@pytest.mark.parametrize("pattern", (r"[0-9]{3}-[a-z]{4}", r"(yes|no), (never|always)\."))
def test_a_regular_expression_is_obeyed(engine, draw, pattern) -> None:
    replies = engine.generate([prompt(draw, 9), prompt(draw, 20)], 40, regex=pattern, ignore_eos=False)
    for reply in replies:
        assert re.fullmatch(pattern, reply.text), reply.text
        assert reply.finish["type"] == "stop"


def test_a_json_schema_is_obeyed_beside_a_free_request(engine, draw) -> None:
    schema = {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "blue"]}, "ready": {"type": "boolean"}},
        "required": ["colour", "ready"],
        "additionalProperties": False,
    }
    free, bound = prompt(draw, 12), prompt(draw, 12)
    engine.flush()
    alone = engine.continuations([free], 24)[0]
    engine.flush()
    sampling = {"json_schema": json.dumps(schema), "ignore_eos": False}
    together = engine.serve([ask(free, 24), ask(bound, 60, sampling=sampling)])
    value = json.loads(together[1].text)
    assert value["colour"] in ("red", "blue") and isinstance(value["ready"], bool) and len(value) == 2
    assert together[0].tokens == alone


def test_log_probabilities_are_those_of_a_prefill(engine, draw) -> None:
    start = prompt(draw, 20)
    engine.flush()
    reply = engine.serve([ask(start, 12, logprobs=True, top_logprobs=4)])[0]
    assert len(reply.output_logprobs) == len(reply.tokens) == 12
    engine.flush()
    again = engine.prompt_logprobs([*start, *reply.tokens])
    assert reply.output_logprobs == pytest.approx(again[-12:], abs=LOGPROB_ERROR)
    assert reply.input_logprobs[1:] == pytest.approx(again[: len(start) - 1], abs=LOGPROB_ERROR)
    for best, chosen in zip(reply.top_logprobs, reply.output_logprobs, strict=True):
        assert len(best) == 4 and best == sorted(best, reverse=True)
        assert best[0] == pytest.approx(chosen, abs=1e-6), "greedy decoding takes the likeliest"


def test_an_aborted_request_ends_and_the_others_go_on(engine, draw) -> None:
    batch = [prompt(draw, length) for length in (30, 100, 40)]
    engine.flush()
    before = engine.free_slots()
    alone = engine.continuations(batch, 16)
    engine.flush()
    replies = engine.serve(
        [
            ask(batch[0], 16),
            ask(batch[1], 200, abort_after=6),
            ask(batch[2], 16, after=2),
            ask(prompt(draw, 30), 16, after=3, abort_after=0),
        ]
    )
    assert [replies[0].tokens, replies[2].tokens] == [alone[0], alone[2]]
    for aborted in (replies[1], replies[3]):
        assert aborted.finish["type"] == "abort"
        assert len(aborted.tokens) < 100
    engine.flush()
    assert engine.free_slots() == before, "an abort left something behind"


def test_retracted_requests_are_resumed_and_lose_nothing(engine, draw) -> None:
    batch = [prompt(draw, 125) for _ in range(10)]
    engine.flush()
    before = engine.free_slots()
    # The scheduler sets aside all of what a request that ignores its end may ask for.
    few = [engine.generate(batch[i : i + 5], 20, ignore_eos=False) for i in range(0, 10, 5)]
    assert not any(reply.retractions for replies in few for reply in replies)
    alone = [reply.tokens for replies in few for reply in replies]
    engine.flush()
    together = engine.generate(batch, 20, ignore_eos=False)
    assert sum(reply.retractions for reply in together) > 0, "the pool was large enough for all"
    assert [reply.tokens for reply in together] == alone
    engine.flush()
    assert engine.free_slots() == before
