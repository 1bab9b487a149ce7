# SPDX-License-Identifier: Apache-2.0
"""DSA on the CPU in plain PyTorch: the indexer that selects keys, and attention over the selection.

On a GPU the index keys lie packed in FP8 beside the latent cache and are rotated by a Hadamard matrix first;
the rotation cancels in q.k, so here the keys are neither rotated nor quantized. They keep the cache's dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sglang.srt.mem_cache.index_key_cache import IndexKeyCache
from sglang.srt.mem_cache.memory_pool import DSATokenToKVPool
from sglang.srt.model_executor.forward_context import get_attn_backend

from .attention import CpuAttnBackend, Span

if TYPE_CHECKING:
    from sglang.srt.layers.attention.dsa.dsa_indexer import Indexer
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch


class CpuIndexKeyCache(IndexKeyCache):
    """Index keys [pages, page_size, index_head_dim] a layer; none for a layer that shares its top-k."""

    def _buffer_shape(self, num_pages: int) -> tuple[int, ...]:
        return num_pages, self.pool.page_size, self.pool.index_head_dim

    def keys(self, layer_id: int) -> Tensor:
        """One layer's keys by cache slot, [slots, index_head_dim]."""
        return self.buffer[layer_id - self.pool.start_layer].flatten(0, 1)

    def move(self, tgt_loc: Tensor, src_loc: Tensor) -> None:
        for layer in self.buffer:
            if layer.shape[0]:
                keys = layer.flatten(0, 1)
                keys[tgt_loc.flatten().long()] = keys[src_loc.flatten().long()]


class CpuDsaTokenToKVPool(DSATokenToKVPool):
    """SGLang's DSA pool with its index keys unpacked."""

    def _create_index_key_cache(self) -> IndexKeyCache:
        if self.index_kpool != 1:
            raise NotImplementedError(f"index_kpool {self.index_kpool}: the CPU engine keeps every index key")
        self.index_k_with_scale_buffer_dtype = self.dtype
        return CpuIndexKeyCache(self, self.index_buf_size)


def index_queries(indexer: Indexer, x: Tensor, q_lora: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
    """The indexer's queries [rows, heads, dim], keys [rows, dim] and head weights [rows, heads]."""
    rope = indexer.rope_head_dim
    query = indexer.wq_b(q_lora)[0].view(-1, indexer.n_heads, indexer.head_dim)
    key = indexer.k_norm(indexer.wk(x)[0])
    q_rope, k_rope = indexer.rotary_emb(positions, query[..., :rope].clone(), key[:, None, :rope].clone())
    query = torch.cat([q_rope.view(*query.shape[:2], rope), query[..., rope:]], -1)
    key = torch.cat([k_rope.view(-1, rope), key[:, rope:]], -1)
    weights = F.linear(x.float(), indexer.weights_proj.weight.float())
    weights = weights * indexer.n_heads**-0.5 * indexer.softmax_scale
    return query, key, weights


def select_keys(query: Tensor, weights: Tensor, keys: Tensor, spans: Sequence[Span], top_k: int) -> Tensor:
    """Each row's ``top_k`` visible keys of largest sum over heads of weight * relu(q.k), as positions.

    ``keys`` [slots, dim] is the whole layer's. Returns int32 [rows, top_k]; -1 where a row sees fewer.
    """
    chosen = torch.full((query.shape[0], top_k), -1, dtype=torch.int32)
    for span in spans:
        rows = slice(span.start, span.stop)
        products = torch.einsum("rhd,kd->rhk", query[rows].float(), keys[span.slots].float())
        scores = torch.einsum("rhk,rh->rk", products.relu(), weights[rows])
        best = scores.masked_fill(~span.visible, -torch.inf).topk(min(top_k, span.slots.numel()))
        picked = best.indices.to(torch.int32).masked_fill(best.values == -torch.inf, -1)
        chosen[rows, : picked.shape[1]] = picked
    return chosen


def indexer_forward(
    indexer: Indexer,
    x: Tensor,
    q_lora: Tensor,
    positions: Tensor,
    forward_batch: ForwardBatch,
    layer_id: int,
    return_indices: bool = True,
    **_: Any,
) -> Tensor | None:
    """``Indexer.forward`` on the CPU: stores the rows' index keys and returns the selection."""
    backend = get_attn_backend()
    query, key, weights = index_queries(indexer, x, q_lora, positions)
    keys = backend.token_to_kv_pool.index_key_cache.keys(layer_id)
    keys[forward_batch.out_cache_loc] = key.to(keys.dtype)
    if not return_indices:
        return None
    return select_keys(query, weights, keys, backend.spans, indexer.index_topk)


class CpuDsaAttnBackend(CpuAttnBackend):
    """Attention over spans, on the keys that the indexer selected for each row."""

    def attend(
        self,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        layer: RadixAttention,
        forward_batch: ForwardBatch,
        save_kv_cache: bool,
        topk_indices: Tensor | None = None,
    ) -> Tensor:
        self.write_cache(k, v, layer, forward_batch, save_kv_cache)
        if topk_indices is None:
            return self.over_spans(q, layer, ((span, span.visible) for span in self.spans))
        return self.over_spans(q, layer, ((span, selected(span, topk_indices)) for span in self.spans))


def selected(span: Span, topk_indices: Tensor) -> Tensor:
    """The part of a span's visibility that ``topk_indices`` [step rows, top_k] picks; -1 picks nothing."""
    picks = topk_indices[span.start : span.stop].long()
    keys = span.slots.numel()
    mask = torch.zeros(picks.shape[0], keys + 1, dtype=torch.bool)
    mask.scatter_(1, picks.masked_fill((picks < 0) | (picks >= keys), keys), True)
    return mask[:, :keys] & span.visible
