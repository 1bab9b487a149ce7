# SPDX-License-Identifier: Apache-2.0
"""The trained Qwen3.5 in SGLang: its text is words, and its drafts are accepted as the trainer counted."""

from __future__ import annotations

import pytest

from sglang_fork.paths import ROOT

pytestmark = pytest.mark.e2e

CHECKPOINTS = ROOT / "test" / "checkpoints"
TOKENS = 96
DRAFT = {
    "speculative_algorithm": "EAGLE",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
}


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    from sglang_fork.checkpoints.train.data import load_tokenizer

    lines = (CHECKPOINTS / "held_out.txt").read_text("ascii").splitlines()
    return [load_tokenizer().encode(line).ids[:64] for line in lines]


@pytest.fixture(scope="module")
def replies(prompts):
    from cpu_engine.local import local_engine

    pools = {"chunked_prefill_size": 64, "max_total_tokens": 1280}
    with local_engine("qwen3_5", CHECKPOINTS / "qwen3_5", **pools, **DRAFT) as engine:
        return engine.generate(prompts, TOKENS)


def test_a_verify_step_yields_what_was_asked_and_what_the_trainer_counted(replies, prompts) -> None:
    import torch

    from sglang_fork.checkpoints.train import measure, save

    steps = sum(reply.verify_steps for reply in replies)
    # A request's first token is the prefill's, and each verify step's last is the target's own.
    yielded = sum(len(reply.tokens) - 1 for reply in replies) / steps
    print(f"{yielded:.2f} tokens a verify step of three drafts, in {steps} steps")
    assert yielded >= 1.8
    model = save.load(CHECKPOINTS / "qwen3_5")
    counted = measure.acceptance(model, "held out", torch.tensor(prompts), tokens=TOKENS)
    assert yielded == pytest.approx(counted.length, abs=0.15)


def test_the_text_is_words(replies) -> None:
    from sglang_fork.checkpoints.train.data import load_tokenizer

    for reply in replies:
        words = load_tokenizer().decode(reply.tokens).split()
        assert len(words) > 20, words
        assert len(set(words)) > 6, words
