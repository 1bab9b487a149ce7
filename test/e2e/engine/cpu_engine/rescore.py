# SPDX-License-Identifier: Apache-2.0
"""Compares what decode steps computed with one prefill over the same tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .harness import GREEDY, CpuEngine


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


def rescore(
    engine: CpuEngine, prompts: Sequence[Sequence[int]], tokens: int, **sampling: Any
) -> list[Rescored]:
    """Decodes ``tokens`` greedily for every prompt at once, then prefills each whole text alone.

    The cache is emptied before every prefill, so that it computes everything itself.
    """
    engine.flush()
    out = engine.engine.generate(
        input_ids=[list(p) for p in prompts],
        sampling_params={**GREEDY, "max_new_tokens": tokens, **sampling},
        return_logprob=True,
    )
    rescored = []
    for prompt, reply in zip(prompts, out, strict=True):
        made = reply["output_ids"]
        assert len(made) == tokens
        engine.flush()
        whole = engine.engine.generate(
            input_ids=[[*prompt, *made]],
            sampling_params={**GREEDY, "max_new_tokens": 1},
            return_logprob=True,
            logprob_start_len=0,
            top_logprobs_num=1,
        )[0]["meta_info"]
        assert whole["cached_tokens"] == 0
        # SGLang scores the vocabulary's last token as token 0 in input_token_logprobs; the top one is right.
        best = whole["input_top_logprobs"][len(prompt) :]
        rescored.append(
            Rescored(
                tokens=made,
                decoded=[entry[0] for entry in reply["meta_info"]["output_token_logprobs"]],
                prefilled=[entry[0][0] for entry in best],
                best=[entry[0][1] for entry in best],
            )
        )
    return rescored
