# SPDX-License-Identifier: Apache-2.0
"""DSpark's drafts of a chosen quality: each verify step accepts as many draft tokens as a test plans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .local import Ask, Reply, Shop

DRAFT = 5
VOCABULARY = 512


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


def run(
    shop: Shop, prompts: Sequence[list[int]], plain: Sequence[list[int]], plan: Sequence[list[int]]
) -> tuple[list[list[int]], list[list[int]], list[dict[str, float]]]:
    """In the scheduler's process: rounds that accept ``plan`` for each prompt.

    Returns the tokens, the accepted lengths that occurred, and, for each round, the largest relative error
    of a row of each kind of state against a prefill of the same text.
    """
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

    def watch(scheduler: Any) -> None:
        for request in asked(shop):
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
        errors.append(row_errors(kept, prefilled(shop, text, 3)[1]))
    return [reply.tokens for reply in replies], accepted, errors


def cached_and_chunked(
    shop: Shop, prompt: Sequence[int], tokens: int
) -> tuple[list[Reply], dict[str, float]]:
    """In the scheduler's process: ``prompt`` with an empty cache, and again with what that left there.

    Returns both replies, and the largest relative error of a row of each kind of state.
    """
    shop.flush()
    cold, state_cold = prefilled(shop, prompt, tokens)
    warm, state_warm = prefilled(shop, prompt, tokens)
    return [cold, warm], row_errors(state_warm, state_cold)


def asked(shop: Shop) -> list[Any]:
    """The requests that are being served."""
    return [shop.requests[name] for name in shop.waiting_for if name in shop.requests]


def prefilled(shop: Shop, text: Sequence[int], tokens: int) -> tuple[Reply, dict[str, Any]]:
    """The reply to ``text`` of ``tokens`` tokens, and the state that its prefill left."""
    kept: dict[str, Any] = {}

    def watch(scheduler: Any) -> None:
        for request in asked(shop):
            if not kept and len(request.output_ids) == 1 and not request.finished():
                kept.update(state(scheduler, request, len(text)))

    return shop.serve([Ask(list(text), tokens)], watch)[0], kept


def row_errors(got: dict[str, Any], wanted: dict[str, Any]) -> dict[str, float]:
    assert got.keys() == wanted.keys() and got
    return {name: row_error(rows, wanted[name]) for name, rows in got.items()}


def row_error(got: Any, wanted: Any) -> float:
    """The largest relative L1 error of a row; infinite if the shapes differ."""
    if got.shape != wanted.shape:
        return float("inf")
    if got.numel() == 0:
        return 0.0
    return float(((got - wanted).abs().sum(-1) / wanted.abs().sum(-1).clamp(min=1e-6)).max())
