# SPDX-License-Identifier: Apache-2.0
"""Paged attention on the CPU in plain PyTorch, speculative steps included: what ``torch_native`` is there.

A step is a list of spans: consecutive query rows that read the same cache slots, and which of those slots
each row may see. Prefill, decode, verify, draft and draft-extend steps differ in their spans alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import KVWriteLoc

if TYPE_CHECKING:
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner


@dataclass(frozen=True)
class Span:
    """Query rows ``start`` to ``stop`` of a step.

    ``slots`` [keys] are their request's cache slots in the order of positions, the rows' own included;
    ``visible`` [rows, keys] says which of them each row reads.
    """

    start: int
    stop: int
    slots: Tensor
    visible: Tensor

    def __post_init__(self) -> None:
        expected = (self.stop - self.start, self.slots.numel())
        if tuple(self.visible.shape) != expected:
            raise ValueError(f"visible is {tuple(self.visible.shape)}, not rows x keys {expected}")


def causal(rows: int, keys: int) -> Tensor:
    """Visibility [rows, keys] of the last ``rows`` positions of a sequence of ``keys``."""
    return torch.ones(rows, keys, dtype=torch.bool).tril(keys - rows)


def in_window(tree: Tensor, keys: int) -> Tensor:
    """Visibility of a draft tree's rows: all of the prefix, and ``tree`` [rows, rows] within the window."""
    rows = tree.shape[0]
    return torch.cat([torch.ones(rows, keys - rows, dtype=torch.bool), tree.bool()], dim=1)


def step_spans(batch: ForwardBatch, req_to_token: Tensor) -> list[Span]:
    """The spans of a prefill, decode, verify or draft-extend step, one a request."""
    mode = batch.forward_mode
    lengths = batch.seq_lens.tolist()
    if mode.is_decode_or_idle():
        counts, trees = [1] * len(lengths), None
    elif mode.is_target_verify():
        width = batch.spec_info.draft_token_num
        counts, trees = [width] * len(lengths), _trees(batch.spec_info, width)
        lengths = [length + width for length in lengths]
    else:
        counts, trees = batch.extend_seq_lens.tolist(), None
        lengths = [p + n for p, n in zip(batch.extend_prefix_lens.tolist(), counts, strict=True)]
    spans, start = [], 0
    for i, (row, length, count) in enumerate(
        zip(batch.req_pool_indices.tolist(), lengths, counts, strict=True)
    ):
        visible = causal(count, length) if trees is None else in_window(trees[i], length)
        spans.append(Span(start, start + count, req_to_token[row, :length].long(), visible))
        start += count
    return spans


def _trees(spec_info: Any, width: int) -> Tensor | None:
    """The window masks [batch, width, width] of a verify step whose draft is a tree; None for a chain."""
    if getattr(spec_info, "tree_topk", 1) == 1:
        return None
    return spec_info.custom_mask.view(-1, width, width)


def draft_spans(batch: ForwardBatch, req_to_token: Tensor, topk: int, steps: int, step: int) -> list[Span]:
    """The spans of draft step ``step``, one a branch: its prefix, then the slots that it has drafted.

    Branch b of a request of length n drafts into the positions n + b * steps and on.
    """
    spans: list[Span] = []
    for row, length in zip(batch.req_pool_indices.tolist(), batch.seq_lens.tolist(), strict=True):
        for branch in range(topk):
            first = length + branch * steps
            places = torch.cat([torch.arange(length), torch.arange(first, first + step + 1)])
            at = len(spans)
            spans.append(Span(at, at + 1, req_to_token[row, places].long(), causal(1, places.numel())))
    return spans


class CpuAttnBackend(TorchNativeAttnBackend):
    """Attention over spans. Encoders, cross-attention and sliding windows stay upstream's, without drafts."""

    def __init__(self, runner: ModelRunner) -> None:
        super().__init__(runner)
        self.spans: list[Span] = []
        self.speculative = False

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        super().init_forward_metadata(forward_batch)
        mode = forward_batch.forward_mode
        self.speculative = mode.is_target_verify() or mode.is_draft_extend_v2()
        self.spans = step_spans(forward_batch, self.req_to_token_pool.req_to_token)

    def forward_extend(
        self,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        layer: RadixAttention,
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
        **settings: Any,
    ) -> Tensor:
        if self._is_upstreams(layer):
            return super().forward_extend(q, k, v, layer, forward_batch, save_kv_cache)
        return self.attend(q, k, v, layer, forward_batch, save_kv_cache, **settings)

    def forward_decode(
        self,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        layer: RadixAttention,
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
        **settings: Any,
    ) -> Tensor:
        if self._is_upstreams(layer):
            return super().forward_decode(q, k, v, layer, forward_batch, save_kv_cache)
        return self.attend(q, k, v, layer, forward_batch, save_kv_cache, **settings)

    def _is_upstreams(self, layer: RadixAttention) -> bool:
        """Whether a layer's attention is of a kind that spans do not express."""
        window = layer.sliding_window_size
        special = (
            layer.is_cross_attention
            or layer.attn_type == AttentionType.ENCODER_ONLY
            or (window is not None and window > -1)
        )
        if special and self.speculative:
            raise NotImplementedError(
                f"layer {layer.layer_id}: speculative decoding on the CPU covers causal attention over the"
                " whole prefix, not cross-attention, encoders or sliding windows"
            )
        return special

    def attend(
        self,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        layer: RadixAttention,
        forward_batch: ForwardBatch,
        save_kv_cache: bool,
    ) -> Tensor:
        """Writes ``k``, ``v`` to the cache and returns the outputs [rows, heads * v_head_dim]."""
        self.write_cache(k, v, layer, forward_batch, save_kv_cache)
        return self.over_spans(q, layer, ((span, span.visible) for span in self.spans))

    def write_cache(
        self,
        k: Tensor | None,
        v: Tensor | None,
        layer: RadixAttention,
        forward_batch: ForwardBatch,
        save_kv_cache: bool,
    ) -> None:
        if save_kv_cache and k is not None and v is not None:
            loc = KVWriteLoc(forward_batch.out_cache_loc, self.swa_out_cache_loc)
            self.token_to_kv_pool.set_kv_buffer(layer, loc, k, v)

    def over_spans(self, q: Tensor, layer: RadixAttention, spans: Iterator[tuple[Span, Tensor]]) -> Tensor:
        """Attention of each span's rows with the visibility given beside it."""
        q = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
        out = q.new_zeros(q.shape[0], layer.tp_q_head_num, layer.v_head_dim)
        keys = self.token_to_kv_pool.get_key_buffer(layer.layer_id)
        values = self.token_to_kv_pool.get_value_buffer(layer.layer_id)
        for span, visible in spans:
            out[span.start : span.stop] = scaled_dot_product_attention(
                q[span.start : span.stop].transpose(0, 1),
                keys[span.slots].to(q.dtype).transpose(0, 1),
                values[span.slots].to(q.dtype).transpose(0, 1),
                attn_mask=visible,
                scale=layer.scaling,
                enable_gqa=layer.tp_q_head_num != layer.tp_k_head_num,
            ).transpose(0, 1)
        return out.flatten(1)


class CpuDraftSteps:
    """The attention of a draft loop: a backend for each of its steps but the last, which only samples."""

    def __init__(self, runner: ModelRunner, topk: int, steps: int) -> None:
        page_size = runner.server_args.page_size or 1
        if topk > 1 and page_size > 1:
            raise ValueError(
                f"--speculative-eagle-topk {topk} with --page-size {page_size}: on the CPU a draft of several"
                " branches needs --page-size 1"
            )
        if runner.server_args.enable_linear_replayssm_spec:
            raise ValueError(
                "--enable-linear-replayssm-spec is a GPU's: its verify step is a Triton kernel;"
                " leave it out on a CPU"
            )
        self.topk, self.steps = topk, steps
        self.attn_backends = [create(runner) for _ in range(steps - 1)]

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        raise NotImplementedError("draft steps on the CPU run eagerly: capturing their graphs needs a GPU")

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        for step, backend in enumerate(self.attn_backends):
            backend.speculative = True
            backend.spans = draft_spans(
                forward_batch, backend.req_to_token_pool.req_to_token, self.topk, self.steps, step
            )


def create(runner: ModelRunner) -> CpuAttnBackend:
    """The backend for a runner's model."""
    from sglang.srt.configs.model_config import is_deepseek_dsa

    if is_deepseek_dsa(runner.model_config.hf_config):
        from .dsa import CpuDsaAttnBackend

        return CpuDsaAttnBackend(runner)
    return CpuAttnBackend(runner)
