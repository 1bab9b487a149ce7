# SPDX-License-Identifier: Apache-2.0
"""A verify step on the CPU commits draws from the target's distribution, whatever was drafted."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.e2e
VOCABULARY, WIDTH, DRAWS = 12, 3, 4000


def test_each_row_is_drawn_by_its_requests_settings() -> None:
    import torch

    from sglang.srt.hardware_backend.cpu.verify_sampling import target_tokens

    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    torch.manual_seed(seed)
    base = torch.randn(3 * WIDTH, VOCABULARY) * 1.5
    logits = base.view(1, 3, WIDTH, VOCABULARY).expand(DRAWS, -1, -1, -1).reshape(-1, VOCABULARY)
    # A request of temperature 0.7, one with a top-k of 4 and a top-p, one that does not sample.
    sampling = SimpleNamespace(
        temperatures=torch.tensor([[0.7], [1.0], [1.0]]).repeat(DRAWS, 1),
        top_ks=torch.tensor([1 << 30, 4, 1]).repeat(DRAWS),
        top_ps=torch.tensor([1.0, 0.8, 1.0]).repeat(DRAWS),
        min_ps=torch.zeros(3 * DRAWS),
        need_min_p_sampling=False,
        sampling_seed=None,
    )
    tokens = target_tokens(logits, sampling, WIDTH, torch.arange(logits.shape[0])).view(DRAWS, 3, WIDTH)
    for row in range(WIDTH):
        free = (base.view(3, WIDTH, -1)[0, row].double() / 0.7).softmax(0)
        some = base.view(3, WIDTH, -1)[1, row].double().softmax(0)
        order = some.argsort(descending=True)[:4]
        kept = order[(some[order].cumsum(0) - some[order]) <= 0.8]
        cut = torch.zeros_like(some).index_copy(0, kept, some[kept])
        for request, wanted in ((0, free), (1, cut / cut.sum())):
            found = tokens[:, request, row].bincount(minlength=VOCABULARY).double() / DRAWS
            assert (found[wanted == 0] == 0).all()
            # Five standard deviations of a share of DRAWS draws.
            assert ((found - wanted).abs() <= 5 * (wanted * (1 - wanted) / DRAWS).sqrt() + 1e-9).all()
        assert (tokens[:, 2, row] == base.view(3, WIDTH, -1)[2, row].argmax()).all()


def test_a_request_that_samples_beside_one_that_does_not(engines) -> None:
    from cpu_engine.local import Ask

    engine = engines("qwen3_5", 6)
    prompt = [random.Random(3).randrange(3, 470) for _ in range(12)]
    engine.flush()
    greedy = engine.continuations([prompt], 16)[0]
    engine.flush()
    hot = {"temperature": 3.0}
    replies = [
        reply.tokens for reply in engine.serve([Ask(prompt, 16), *(Ask(prompt, 16, hot) for _ in range(3))])
    ]
    assert replies[0] == greedy
    assert len({tuple(tokens) for tokens in replies}) == 4, (
        "sampled replies differ from greedy and each other"
    )
