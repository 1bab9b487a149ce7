# SPDX-License-Identifier: Apache-2.0
"""Qwen3.5-MoE on the CPU engine against transformers, both in FP32."""

from __future__ import annotations

import random

import pytest

pytestmark = pytest.mark.e2e

TOKENS = 12


def prompts() -> list[list[int]]:
    draw = random.Random(5)
    return [[draw.randrange(3, 470) for _ in range(length)] for length in (2, 9, 70)]


@pytest.fixture(scope="module")
def reference(tiny):
    import torch
    from transformers.models.qwen3_5_moe import Qwen3_5MoeForCausalLM

    model = Qwen3_5MoeForCausalLM.from_pretrained(tiny("qwen3_5"), dtype=torch.float32).eval()

    def ask(prompt: list[int]) -> tuple[list[float], list[int], list[float]]:
        """Prompt log-probabilities, greedy tokens, and the lead of each over the runner-up."""
        ids, out, leads = list(prompt), [], []
        with torch.inference_mode():
            logits = model(torch.tensor([ids]), use_cache=False).logits[0]
            scores = logits.log_softmax(-1)
            logprobs = [float(scores[i, token]) for i, token in enumerate(prompt[1:])]
            for _ in range(TOKENS):
                best = model(torch.tensor([ids]), use_cache=False).logits[0, -1].topk(2)
                out.append(int(best.indices[0]))
                leads.append(float(best.values[0] - best.values[1]))
                ids.append(out[-1])
        return logprobs, out, leads

    return ask


@pytest.mark.parametrize("prompt", prompts(), ids=len)
def test_log_probabilities_and_greedy_tokens_equal_transformers(engines, reference, prompt) -> None:
    engine = engines("qwen3_5")
    logprobs, tokens, leads = reference(prompt)
    assert min(leads) > 1e-3, f"a tie would make the comparison meaningless: {leads}"
    engine.flush()
    assert engine.prompt_logprobs(prompt) == pytest.approx(logprobs, abs=2e-4)
    engine.flush()
    assert engine.continuations([prompt], TOKENS) == [tokens]
    assert len(set(tokens)) > 3, "a reply that repeats itself proves little"
