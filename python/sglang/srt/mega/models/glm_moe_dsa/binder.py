# SPDX-License-Identifier: Apache-2.0
"""Binds sparse attention and the query's norm to a loaded GLM-5.x."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from sglang.srt.mega import host
from sglang.srt.mega.models.glm_moe_dsa.kernels import QueryNorm, SparseMla
from sglang.srt.mega.models.glm_moe_dsa.tactics import LATENT, MAX_ROWS, ROPE, NormShape, Shape
from sglang.srt.mega.plan import Cause, Unavailable
from sglang.srt.mega.slots import Slot
from sglang.srt.mega.step import Kernel
from sglang.srt.mega.view import StepView

SGLANG_READS = {
    "body srt/layers/layernorm.py::RMSNorm.__init__",
    "sig srt/layers/radix_attention.py::RadixAttention.forward",
    "body srt/layers/attention/dsa_backend.py::DeepseekSparseAttnBackend._get_fused_topk_page_table",
    "sig srt/mem_cache/memory_pool.py::MLATokenToKVPool.set_mla_kv_buffer",
    "sig srt/mem_cache/memory_pool.py::MLATokenToKVPool.set_kv_buffer",
    "body srt/models/deepseek_common/attention_forward_methods/forward_mla.py::"
    "DeepseekMLAForwardMixin.forward_absorb_core",
}


CACHES = ("auto", "bf16", "bfloat16", "fp8_e4m3")


class Binder:
    """The kernels of one loaded model's attention. Nothing is compiled or allocated before ``bind``."""

    def __init__(self, layers: Any, kv_cache_dtype: str, index_top_k: int, device: torch.device) -> None:
        self.layers, self.device = layers, device
        self.kv_cache_dtype, self.index_top_k = kv_cache_dtype, index_top_k

    def unavailable(self, slot: Slot) -> Unavailable | None:
        """Why ``slot`` has no kernel here, or None."""
        if slot.name == "q_norm" and host.emulating():
            return Unavailable(Cause.DEVICE, "CuTe DSL kernels have no emulation", "the stock step runs it")
        reason = self.mla_refusal() if slot.name == "sparse_mla" else self.norm_refusal()
        return None if reason is None else Unavailable(Cause.CONFIG, reason, "leave it out of the slot list")

    def mla_refusal(self) -> str | None:
        """Why sparse attention has no kernel for these layers and this cache, or None."""
        for layer in self.layers:
            attention = layer.self_attn
            sizes = (attention.kv_lora_rank, attention.qk_rope_head_dim)
            if sizes != (LATENT, ROPE):
                return f"layer {attention.layer_id}: a latent of {sizes[0]} + {sizes[1]} channels"
            try:
                self.mla_shape(attention)
            except ValueError as error:
                return str(error)
        if self.kv_cache_dtype not in CACHES:
            return f"--kv-cache-dtype {self.kv_cache_dtype}"
        return None

    def norm_refusal(self) -> str | None:
        """Why the query's norm has no kernel for these layers, or None."""
        for layer in self.layers:
            norm = layer.self_attn.q_a_layernorm
            try:
                norm_shape(layer.self_attn)
            except ValueError as error:
                return str(error)
            if norm.cast_x_before_out_mul or norm.variance_size_override is not None:
                return f"layer {layer.self_attn.layer_id}: a norm of another form"
            if norm.weight.dtype != torch.bfloat16:
                return f"layer {layer.self_attn.layer_id}: norm in {norm.weight.dtype}"
        return None

    def mla_shape(self, attention: Any) -> Shape:
        """Raises ``ValueError`` for sizes that no kernel is built for."""
        fp8 = self.kv_cache_dtype.startswith("fp8")
        return Shape(attention.num_local_heads, self.index_top_k, fp8, host.shared_bytes())

    def bind(self, slots: Collection[str]) -> dict[tuple[str, int], Kernel]:
        """(slot, id of attention module) -> kernel. One set of buffers serves every layer."""
        kernels: dict[tuple[str, int], Kernel] = {}
        if "sparse_mla" in slots:
            mla = SparseMla(self.mla_shape(self.layers[0].self_attn), self.device)
            heads = mla.shape.heads
            out = torch.zeros(MAX_ROWS, heads, LATENT, dtype=torch.bfloat16, device=self.device)
            for layer in self.layers:
                bound = bind_sparse_mla(mla, out, layer.self_attn.attn_mqa)
                kernels["sparse_mla", id(layer.self_attn)] = bound
        if "q_norm" in slots:
            norm = QueryNorm(norm_shape(self.layers[0].self_attn), self.device)
            for layer in self.layers:
                weight = layer.self_attn.q_a_layernorm.weight
                kernels["q_norm", id(layer.self_attn)] = bind_q_norm(norm, weight)
        return kernels


def norm_shape(attention: Any) -> NormShape:
    """Raises ``ValueError`` for sizes that no kernel is built for."""
    query = attention.q_lora_rank
    if query is None:
        raise ValueError("the query is not compressed")
    stride = query + attention.kv_lora_rank + attention.qk_rope_head_dim
    return NormShape(query, stride, float(attention.q_a_layernorm.variance_epsilon))


def bind_q_norm(norm: QueryNorm, weight: torch.Tensor) -> Kernel:
    """Slot ``q_norm`` of one layer: one launch into the rows that every layer uses."""

    def kernel(view: StepView, x: torch.Tensor) -> torch.Tensor:
        return norm(x, weight)

    return kernel


def bind_sparse_mla(mla: SparseMla, out: torch.Tensor, layer: Any) -> Kernel:
    """Slot ``sparse_mla`` of one layer: two launches."""
    heads = mla.shape.heads

    def kernel(
        view: StepView,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        forward_batch: Any,
        *,
        q_rope: torch.Tensor | None = None,
        k_rope: torch.Tensor | None = None,
        topk_indices: torch.Tensor,
        save_kv_cache: bool = True,
        **settings: Any,
    ) -> torch.Tensor:
        if settings:
            raise ValueError(f"sparse attention does not take {sorted(settings)}")
        rows = view.rows
        if save_kv_cache and k_rope is None:
            view.kv_pool.set_kv_buffer(layer, view.out_cache_loc, k, v)
        elif save_kv_cache:
            view.kv_pool.set_mla_kv_buffer(layer, view.out_cache_loc, k, k_rope)
        if q_rope is None:
            q, q_rope = q.view(rows, heads, -1)[..., :LATENT], q.view(rows, heads, -1)[..., LATENT:]
        else:
            q, q_rope = q.view(rows, heads, LATENT), q_rope.view(rows, heads, ROPE)
        cache = view.kv_pool.get_key_buffer(layer.layer_id)
        mla(q, q_rope, cache, view.chosen_slots(topk_indices), layer.scaling, out[:rows])
        return out[:rows].flatten(1)

    return kernel
