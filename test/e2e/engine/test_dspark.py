# SPDX-License-Identifier: Apache-2.0
"""DSpark on the CPU: plain greedy tokens; after every accepted length, the state of a re-prefill.

A random draft accepts almost nothing, so the drafts are replaced in the scheduler's process by the plain
continuation up to the length that a round shall accept, and by other tokens after it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

DRAFT = 5
VOCABULARY = 512
# Relative L1 error of a row of state: FP32 sums in another order, and the FP4 roundings that they may flip.
# The row of another token is off by about 1.
ROW_ERROR = 1e-2


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
def plain(tiny, prompts) -> list[list[int]]:
    """Continuations without a draft, long enough for every accepted length in any order."""
    from cpu_engine.local import local_engine

    with local_engine("deepseek_v41", tiny("deepseek_v41")) as engine:
        return engine.continuations(prompts, rounds_length() + DRAFT + 3)


@pytest.fixture(scope="module")
def drafting(tiny):
    from cpu_engine.local import local_engine

    settings = {"speculative_algorithm": "DSPARK", "speculative_dspark_block_size": DRAFT}
    with local_engine("deepseek_v41", tiny("deepseek_v41"), **settings) as engine:
        yield engine


def rounds_length() -> int:
    """Tokens of one round of every accepted length: the accepted drafts and the target's own token."""
    return sum(accepted + 1 for accepted in range(DRAFT + 1))


def state(scheduler: Any, request: Any, length: int) -> dict[str, Any]:
    """Everything that the first ``length`` tokens of a request left behind, as rows [tokens, dim]."""
    import torch

    worker = scheduler.model_worker
    runner, draft = worker.target_worker.model_runner, worker.draft_model_runner
    pool, row = runner.token_to_kv_pool, request.kv.req_pool_idx
    slots = runner.req_to_token_pool.req_to_token[row, :length].long()
    window = pool.translate_loc_from_full_to_swa(slots)[-128:].long()
    kept = {}
    for layer in range(len(pool.compression_ratios)):
        kept[f"window keys of layer {layer}"] = pool.window_rows(layer)[window]
    for ratio, layers in pool.sources_by_ratio.items():
        groups = slots[ratio - 1 :: ratio] // ratio
        for layer in layers:
            kept[f"latents of layer {layer}"] = pool.latent_rows(layer)[groups]
            kept[f"index keys of layer {layer}"] = pool.get_low_ratio_index_k_dequant(layer, groups)
            if ratio == 2 and length % 2:
                pairs = pool.get_attention_compress_states(layer)
                at = pairs.translate_from_req_position_to_state_loc(
                    torch.tensor([row]), torch.tensor([length - 1])
                )
                pending = pairs.get_state_by_state_loc(at)
                kept[f"pending pair of layer {layer}"] = torch.cat([pending.kv, pending.score])
    history = runner.ngram_embedding_manager.engram_hasher.history
    kept["Engram history"] = history[row].view(1, -1)
    for stage in range(len(draft.token_to_kv_pool.compression_ratios)):
        kept[f"draft context of stage {stage}"] = draft.token_to_kv_pool.window_rows(stage)[window]
    return {name: rows.float().clone() for name, rows in kept.items()}


def forced(
    shop: Any, prompts: Sequence[list[int]], plain: Sequence[list[int]], plan: Sequence[list[int]]
) -> tuple[list[list[int]], list[list[int]], list[dict[str, float]]]:
    """In the scheduler's process: rounds that accept ``plan`` for each prompt.

    Returns the tokens, the accepted lengths that occurred, and, for each round, the largest relative error
    of a row of each kind of state against a prefill of the same text.
    """
    from cpu_engine.local import Ask

    proposer = shop.scheduler.model_worker._proposer
    propose = proposer.propose
    accepted: list[list[int]] = [[] for _ in prompts]
    snapshots: list[tuple[list[int], dict[str, Any]]] = []
    seen = [0] * len(prompts)

    def index_of(request: Any) -> int:
        return list(prompts).index(list(request.origin_input_ids))

    def forge(*args: Any, batch: Any, **kwargs: Any) -> Any:
        proposal = propose(*args, batch=batch, **kwargs)
        assert proposal.verify_ids is None, "the verified ids are made of the tokens below"
        for row, request in enumerate(batch.reqs):
            i, done = index_of(request), len(request.output_ids)
            wanted = plan[i][len(accepted[i])] if len(accepted[i]) < len(plan[i]) else 0
            for place in range(DRAFT):
                truth = plain[i][done + place] if done + place < len(plain[i]) else 0
                proposal.draft_block.draft_tokens[row, place] = (truth + (place >= wanted)) % VOCABULARY
        return proposal

    def live() -> list[Any]:
        return [shop.requests[name] for name in shop.waiting_for if name in shop.requests]

    def watch(scheduler: Any) -> None:
        for request in live():
            i, done = index_of(request), len(request.output_ids)
            if request.finished() or done == seen[i]:
                continue
            if seen[i]:
                accepted[i].append(done - seen[i] - 1)
                text = [*prompts[i], *list(request.output_ids)[:-1]]
                snapshots.append((text, state(scheduler, request, len(text))))
            seen[i] = done

    proposer.propose = forge
    try:
        replies = shop.serve([Ask(list(p), rounds_length() + 3) for p in prompts], watch)
    finally:
        proposer.propose = propose

    errors = []
    for text, kept in snapshots:
        shop.flush()
        again: dict[str, Any] = {}

        def watch_prefill(scheduler: Any, length: int = len(text), again: dict[str, Any] = again) -> None:
            for request in live():
                if not again and len(request.output_ids) == 1 and not request.finished():
                    again.update(state(scheduler, request, length))

        shop.serve([Ask(text, 3)], watch_prefill)
        assert again.keys() == kept.keys()
        errors.append({name: row_error(kept[name], again[name]) for name in kept})
    return [reply.tokens for reply in replies], accepted, errors


def row_error(got: Any, wanted: Any) -> float:
    """The largest relative L1 error of a row; infinite if the shapes differ."""
    if got.shape != wanted.shape:
        return float("inf")
    if got.numel() == 0:
        return 0.0
    return float(((got - wanted).abs().sum(-1) / wanted.abs().sum(-1).clamp(min=1e-6)).max())


def test_greedy_tokens_are_plain_decodings(drafting, prompts, plain) -> None:
    replies = drafting.generate(prompts, len(plain[0]))
    assert [reply.tokens for reply in replies] == plain
    assert all(0 < reply.verify_steps < len(plain[0]) for reply in replies), "no draft was verified"


def test_every_accepted_length_leaves_the_state_of_a_re_prefill(drafting, prompts, plain, seed) -> None:
    plan = [list(range(DRAFT + 1)) for _ in prompts]
    for i, lengths in enumerate(plan):
        random.Random(seed + i).shuffle(lengths)
    drafting.flush()
    tokens, accepted, errors = drafting.call(forced, prompts, plain, plan)
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
