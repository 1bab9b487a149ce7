# SPDX-License-Identifier: Apache-2.0
"""Compares what decode steps computed with one prefill over the same tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .local import Ask, Local


@dataclass(frozen=True)
class Rescored:
    """One greedy reply, and the same tokens seen by a prefill from scratch.

    ``decoded`` are the log-probabilities of ``tokens``; ``best`` is the prefill's argmax at each of their
    places and ``prefilled`` its log-probability.
    """

    tokens: list[int]
    decoded: list[float]
    prefilled: list[float]
    best: list[int]

    @property
    def error(self) -> float:
        """Largest difference of a log-probability."""
        return max(abs(a - b) for a, b in zip(self.decoded, self.prefilled, strict=True))


def rescore(engine: Local, prompts: Sequence[Sequence[int]], tokens: int) -> list[Rescored]:
    """Decodes ``tokens`` greedily for every prompt at once, then prefills each whole text alone.

    The cache is emptied before every prefill, so that it computes everything itself.
    """
    engine.flush()
    rescored = []
    for prompt, reply in zip(
        prompts, engine.serve([Ask(list(p), tokens, logprobs=True) for p in prompts]), strict=True
    ):
        assert len(reply.tokens) == tokens
        engine.flush()
        whole = engine.serve([Ask([*prompt, *reply.tokens], 1, logprobs=True, top_logprobs=1)])[0]
        assert whole.cached == 0
        # SGLang scores the vocabulary's last token as token 0 in input_logprobs; the top one is right.
        best = [top[0] for top in whole.input_top[len(prompt) :]]
        rescored.append(
            Rescored(
                tokens=reply.tokens,
                decoded=reply.output_logprobs,
                prefilled=[value for value, _ in best],
                best=[token for _, token in best],
            )
        )
    return rescored


def re_prefill_mismatches(engine: Local, prompts: Sequence[Sequence[int]], tokens: int) -> list[str]:
    """Decodes ``tokens`` greedily, then asks the prefill for each of them again from scratch.

    Returns a line for each token on which decode and prefill disagree. The cache is emptied in between, so
    that the prefill computes everything itself.
    """
    wrong = []
    decoded = engine.continuations(prompts, tokens)
    for prompt, out in zip(prompts, decoded, strict=True):
        assert len(out) == tokens
        for k, token in enumerate(out):
            engine.flush()
            again = engine.continuations([[*prompt, *out[:k]]], 1)[0][0]
            if again != token:
                wrong.append(f"prompt of {len(prompt)}, token {k}: decode {token}, prefill {again}")
    return wrong
