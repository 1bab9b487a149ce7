# SPDX-License-Identifier: Apache-2.0
"""The running forward's state, read from what every attention backend shares.

Triton, FA3, TRT-LLM and the CPU's plain-torch backend plan their own metadata, but all of them read the same
pools through the same index tensors. A kernel written against this view serves all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

SGLANG_READS = {
    "sig srt/model_executor/forward_context.py::get_attn_backend",
    "body srt/layers/attention/hybrid_linear_attn_backend.py::HybridLinearAttnBackend.__init__",
    "body srt/layers/attention/hybrid_linear_attn_backend.py::MambaAttnBackendBase._track_mamba_state_decode",
}


@dataclass(frozen=True)
class RecurrentView:
    """Conv and recurrent state of the linear-attention layers.

    ``slots``: ``[bs]`` int32, each request's row in the state pools, -1 for a padded graph row, which must
    touch nothing. ``pool``: the request pool that maps a layer to its state
    (``mamba2_layer_cache(layer_id)``). ``backend``: the linear backend, whose ``_track_mamba_state_decode``
    keeps the radix cache's copies of the state.
    """

    slots: torch.Tensor
    pool: Any
    backend: Any


@dataclass(frozen=True)
class StepView:
    """One step's inputs and pools; in a captured graph the tensors are the graph's static buffers.

    ``rows`` tokens of ``requests`` requests. ``positions``: ``[rows]`` int64, or ``[3, rows]`` for mrope.
    ``req_pool_indices``, ``seq_lens``: ``[requests]``; ``seq_lens`` counts this step's tokens.
    ``out_cache_loc``: ``[rows]`` int64, the KV row each token is written to. ``req_to_token``: ``[slots,
    context]`` int32, the KV row of each position. ``kv_pool`` holds the per-layer KV buffers.
    """

    rows: int
    requests: int
    positions: torch.Tensor
    req_pool_indices: torch.Tensor
    seq_lens: torch.Tensor
    out_cache_loc: torch.Tensor
    req_to_token: torch.Tensor
    kv_pool: Any
    recurrent: RecurrentView | None
    selects_slots: bool = False

    @cached_property
    def lengths(self) -> torch.Tensor:
        """``seq_lens`` as int32, converted once a step."""
        return self.seq_lens.to(torch.int32)

    def chosen_slots(self, top_k: torch.Tensor) -> torch.Tensor:
        """KV rows of an indexer's choice, ``[rows, k]`` int32, -1 where it chose nothing.

        ``top_k``: ``[rows, k]`` int32, KV rows where the backend's top-k writes them (``selects_slots``),
        else positions within the row's request.
        """
        if self.selects_slots:
            return top_k
        requests = self.req_pool_indices
        if self.rows != self.requests:
            requests = requests.repeat_interleave(self.rows // self.requests)
        slots = self.req_to_token[requests].gather(1, top_k.clamp(min=0).long())
        return slots.to(torch.int32).masked_fill(top_k < 0, -1)


def view_of(positions: torch.Tensor, forward_batch: Any) -> StepView:
    """The view of the forward that is running now."""
    from sglang.srt.model_executor.forward_context import get_attn_backend

    backend = get_attn_backend()
    linear = getattr(backend, "linear_attn_backend", None)
    recurrent = None
    if linear is not None:
        slots = linear.forward_metadata.mamba_cache_indices
        recurrent = RecurrentView(slots, linear.req_to_token_pool, linear)
    return StepView(
        rows=positions.shape[-1],
        requests=int(forward_batch.batch_size),
        positions=positions,
        req_pool_indices=forward_batch.req_pool_indices,
        seq_lens=forward_batch.seq_lens,
        out_cache_loc=forward_batch.out_cache_loc,
        req_to_token=backend.req_to_token_pool.req_to_token,
        kv_pool=backend.token_to_kv_pool,
        recurrent=recurrent,
        selects_slots=bool(getattr(backend, "use_fused_topk", False)),
    )
