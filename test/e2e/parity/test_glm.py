# SPDX-License-Identifier: Apache-2.0
"""GLM's sparse attention on the CPU engine against transformers, both in FP32, past the indexer's top-k."""

from __future__ import annotations

import random

import pytest

pytestmark = pytest.mark.e2e

TOKENS = 12
LENGTHS = (3, 40, 150)  # the indexer keeps 64 keys


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    draw = random.Random(7)
    return [[draw.randrange(3, 470) for _ in range(length)] for length in LENGTHS]


@pytest.fixture(scope="module")
def reference(tiny, prompts):
    """For each prompt: its tokens' log-probabilities, greedy tokens, and each one's lead on the runner-up."""
    import torch
    from transformers.models.glm_moe_dsa import GlmMoeDsaForCausalLM

    model = GlmMoeDsaForCausalLM.from_pretrained(
        tiny("glm_moe_dsa"), dtype=torch.float32, attn_implementation="eager"
    ).eval()
    assert model.config.index_topk < max(LENGTHS), "no prompt makes the indexer choose"
    answers = []
    with torch.inference_mode():
        for prompt in prompts:
            ids, out, leads = list(prompt), [], []
            scores = model(torch.tensor([ids]), use_cache=False).logits[0].log_softmax(-1)
            logprobs = [float(scores[i, token]) for i, token in enumerate(prompt[1:])]
            for _ in range(TOKENS):
                best = model(torch.tensor([ids]), use_cache=False).logits[0, -1].topk(2)
                out.append(int(best.indices[0]))
                leads.append(float(best.values[0] - best.values[1]))
                ids.append(out[-1])
            answers.append((logprobs, out, leads))
    return answers


@pytest.mark.parametrize("which", range(len(LENGTHS)), ids=LENGTHS)
def test_log_probabilities_and_greedy_tokens_equal_transformers(engines, reference, prompts, which) -> None:
    engine = engines("glm_moe_dsa")
    logprobs, tokens, leads = reference[which]
    assert min(leads) > 1e-3, f"a tie would make the comparison meaningless: {leads}"
    engine.flush()
    assert engine.prompt_logprobs(prompts[which]) == pytest.approx(logprobs, abs=5e-4)
    engine.flush()
    assert engine.continuations([prompts[which]], TOKENS) == [tokens]
    assert len(set(tokens)) > 3, "a reply that repeats itself proves little"
