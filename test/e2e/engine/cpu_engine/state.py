# SPDX-License-Identifier: Apache-2.0
"""Everything that a scheduler keeps of a request for its next step, and what another run would have kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from .local import Ask, Shop


def cache_buffers(pool: Any) -> dict[str, Tensor]:
    """The buffers of a key-value pool, [slots, ...] each."""
    pool = getattr(pool, "full_kv_pool", pool)
    buffers = {}
    for name in ("k_buffer", "v_buffer", "kv_buffer"):
        for layer, buffer in enumerate(getattr(pool, name, None) or ()):
            buffers[f"{name}[{layer}]"] = buffer
    if hasattr(pool, "index_key_cache"):
        for layer, buffer in enumerate(pool.index_key_cache.buffer):
            buffers[f"index_k[{layer}]"] = buffer.flatten(0, 1)
    return buffers


def live(scheduler: Any) -> list[Any]:
    """The requests that have tokens and are not finished, those of the step that has just ended included."""
    found = {}
    for batch in (scheduler.running_batch, scheduler.last_batch):
        for request in (batch.reqs if batch is not None else None) or ():
            if request.output_ids and not request.finished():
                found[request.rid] = request
    return list(found.values())


def snapshot(scheduler: Any, request: Any) -> dict[str, Tensor]:
    """A running request's cached keys and values, its draft's, and its recurrent states, copied.

    Its last token has not been computed yet: the sequence before it is what the state stands for.
    """
    length = len(request.origin_input_ids) + len(request.output_ids) - 1
    rows = scheduler.req_to_token_pool
    slots = rows.req_to_token[request.kv.req_pool_idx, :length].long()
    pools = {"target": scheduler.tp_worker.model_runner.token_to_kv_pool}
    if scheduler.draft_worker is not None:
        pools["draft"] = scheduler.draft_worker.draft_worker.draft_runner.token_to_kv_pool
    state = {
        f"{owner} {name}": buffer[slots].clone()
        for owner, pool in pools.items()
        for name, buffer in cache_buffers(pool).items()
        if buffer.shape[0]
    }
    if request.kv.mamba_pool_idx is not None:
        cache = rows.mamba_pool.mamba_cache
        slot = int(request.kv.mamba_pool_idx)
        state["recurrent"] = cache.temporal[:, slot].clone()
        for i, conv in enumerate(cache.conv):
            state[f"convolution[{i}]"] = conv[:, slot].clone()
    return state


def after_prefill(shop: Shop, sequences: Sequence[Sequence[int]]) -> list[tuple[int, dict[str, Tensor]]]:
    """For each sequence, computed by the prefill alone: the token that follows and the state that it left.

    Each is asked alone with an empty cache.
    """
    found = []
    for sequence in sequences:
        shop.flush()
        seen: list[tuple[int, dict[str, Tensor]]] = []

        def watch(scheduler: Any, seen: list[Any] = seen) -> None:
            for request in live(scheduler) if not seen else ():
                assert len(request.output_ids) == 1
                seen.append((request.output_ids[0], snapshot(scheduler, request)))

        shop.serve([Ask(sequence, 2)], watch)
        assert seen, "the prefill's state was not seen"
        found.append(seen[0])
    return found


def largest_difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> tuple[float, str]:
    """The largest error relative to its buffer's largest value, and whose it is."""
    assert one.keys() == other.keys() and one, (one.keys(), other.keys())
    worst = (0.0, "")
    for name, value in one.items():
        assert value.shape == other[name].shape, name
        scale = float(value.abs().max()) or 1.0
        worst = max(worst, (float((value - other[name]).abs().max()) / scale, name))
    return worst
