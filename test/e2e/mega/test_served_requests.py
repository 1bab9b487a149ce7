# SPDX-License-Identifier: Apache-2.0
"""What requests meet with the megakernel on, emulated: grammars, log-probabilities, aborts, chunks, cache
hits, retraction. One scheduler serves the trained checkpoint; without its kernels it is the stock arm.

A continuation equals stock's, or first differs where stock's two best tokens tie. Positions of three axes are
``test_three_axes.py``'s.
"""

from __future__ import annotations

import random
import re
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from sglang_fork.paths import ROOT

pytestmark = pytest.mark.e2e

TIE = 0.25  # in log-probabilities: what BF16 rounding moves, by a tie between experts at most
ENVIRONMENT = {"SGLANG_MEGAKERNEL_EMULATE": "1", "SGLANG_MAMBA_CONV_DTYPE": "bfloat16"}
POOL = 320  # tokens


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    from cpu_engine.local import local_engine

    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        with local_engine(
            "qwen3_5",
            ROOT / "test" / "checkpoints" / "qwen3_5",
            dtype="bfloat16",
            enable_nvidia_megakernel=True,
            chunked_prefill_size=64,
            max_total_tokens=POOL,
            max_running_requests=8,
            schedule_conservativeness=0.1,
        ) as running:
            yield running


def prompt(length: int, seed: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(3, 470) for _ in range(length)]


def ask(tokens: list[int], count: int = 6, **settings: Any) -> Any:
    from cpu_engine.local import Ask

    return Ask(tokens, count, logprobs=True, top_logprobs=2, **settings)


def stock(engine: Any, asks: Sequence[Any]) -> list[Any]:
    """The same requests without kernels, from an empty cache."""
    from cpu_engine.megakernel import turn_off, turn_on

    engine.call(turn_off)
    engine.flush()
    try:
        return engine.serve(asks)
    finally:
        engine.flush()
        engine.call(turn_on)


def same_or_tie(mega: Any, plain: Any) -> None:
    """Equal tokens, or a first difference where stock's two best lie within ``TIE``."""
    for step, (mine, theirs) in enumerate(zip(mega.tokens, plain.tokens, strict=False)):
        if mine != theirs:
            best, second = plain.top_logprobs[step][:2]
            assert best - second <= TIE, f"step {step}: {mine} for {theirs}, {best - second:.3f} apart"
            return
    assert len(mega.tokens) == len(plain.tokens)


def covered(engine: Any) -> tuple[int, int]:
    """Decode steps that the megakernel ran, and those that it did not."""
    from cpu_engine import megakernel

    return engine.call(megakernel.covered)


def test_every_decode_step_is_covered_and_log_probabilities_are_near_stocks(engine) -> None:
    asks = [ask(prompt(5, 1)), ask(prompt(17, 2))]
    before = covered(engine)
    mega = engine.serve(asks)
    ran, missed = (now - then for now, then in zip(covered(engine), before, strict=True))
    assert ran >= 5 and missed == 0
    moved = []
    for mine, theirs in zip(mega, stock(engine, asks), strict=True):
        same_or_tie(mine, theirs)
        assert mine.output_logprobs[0] == theirs.output_logprobs[0], "the prefill is stock's"
        for a, b, token, other in zip(
            mine.output_logprobs[1:],
            theirs.output_logprobs[1:],
            mine.tokens[1:],
            theirs.tokens[1:],
            strict=True,
        ):
            if token != other:
                break
            moved.append(abs(a - b))
    assert max(moved) <= 2 * TIE and 0 < statistics.median(moved) <= TIE / 4, moved


def test_a_grammar_is_obeyed(engine) -> None:
    pattern = r"[0-9]{2}-[a-z]{2}"
    asks = [ask(prompt(9, 3), 24, sampling={"regex": pattern, "ignore_eos": False}), ask(prompt(12, 4))]
    before = covered(engine)
    bound, free = engine.serve(asks)
    assert covered(engine)[0] > before[0]
    assert re.fullmatch(pattern, bound.text) and bound.finish["type"] == "stop"
    same_or_tie(free, stock(engine, asks[1:])[0])


def test_a_prompt_of_several_chunks_beside_one_that_decodes(engine) -> None:
    asks = [ask(prompt(9, 5), 8), ask(prompt(150, 6), 4, after=2)]
    engine.flush()
    for mine, theirs in zip(engine.serve(asks), stock(engine, asks), strict=True):
        same_or_tie(mine, theirs)


def test_a_continued_conversation_hits_the_cache_and_a_cold_one_says_the_same(engine) -> None:
    engine.flush()
    first = prompt(64, 7)
    longer = [*first, *engine.serve([ask(first)])[0].tokens, *prompt(5, 8)]
    (warm,) = engine.generate([longer], 6)  # a request for log-probabilities of its prompt computes all of it
    assert 64 <= warm.cached < len(longer)
    engine.flush()
    (cold,) = engine.generate([longer], 6)
    assert cold.cached == 0
    (plain,) = stock(engine, [ask(longer)])
    same_or_tie(warm, plain)
    same_or_tie(cold, plain)


def test_an_aborted_request_ends_and_its_neighbour_goes_on(engine) -> None:
    engine.flush()
    stays, leaves = engine.serve([ask(prompt(20, 9), 7), ask(prompt(30, 10), 100, abort_after=3)])
    assert leaves.finish["type"] == "abort" and len(leaves.tokens) < 50
    same_or_tie(stays, stock(engine, [ask(prompt(20, 9), 7)])[0])


def test_retracted_requests_are_resumed(engine) -> None:
    asks = [ask(prompt(70, 20 + i), 16, sampling={"ignore_eos": False}) for i in range(5)]
    engine.flush()
    together = engine.serve(asks)
    assert sum(reply.retractions for reply in together) > 0, "the pool was large enough for all"
    engine.flush()
    for each, mine in zip(asks, together, strict=True):
        same_or_tie(mine, stock(engine, [each])[0])
