# SPDX-License-Identifier: Apache-2.0
"""Binds the sparse attention kernel to a loaded GLM-5.x."""

from __future__ import annotations

from typing import Any

import torch

from sglang.srt.mega.models.glm_moe_dsa.kernels import SparseMla
from sglang.srt.mega.models.glm_moe_dsa.tactics import LATENT, MAX_ROWS, ROPE, Shape
from sglang.srt.mega.step import Kernel
from sglang.srt.mega.view import StepView

SGLANG_READS = {
    "sig srt/layers/radix_attention.py::RadixAttention.forward",
    "body srt/layers/attention/dsa_backend.py::DeepseekSparseAttnBackend._get_fused_topk_page_table",
    "sig srt/mem_cache/memory_pool.py::MLATokenToKVPool.set_mla_kv_buffer",
    "sig srt/mem_cache/memory_pool.py::MLATokenToKVPool.set_kv_buffer",
    "body srt/models/deepseek_common/attention_forward_methods/forward_mla.py::"
    "DeepseekMLAForwardMixin.forward_absorb_core",
}


def refusal(layers: Any, kv_cache_dtype: str, index_top_k: int) -> str | None:
    """Why sparse attention has no kernel for these layers and this cache, or None."""
    for layer in layers:
        attention = layer.self_attn
        sizes = (attention.kv_lora_rank, attention.qk_rope_head_dim)
        if sizes != (LATENT, ROPE):
            return f"layer {attention.layer_id}: a latent of {sizes[0]} + {sizes[1]} channels"
        try:
            Shape(attention.num_local_heads, index_top_k, fp8=kv_cache_dtype.startswith("fp8"))
        except ValueError as error:
            return str(error)
    if kv_cache_dtype not in ("auto", "bf16", "bfloat16", "fp8_e4m3"):
        return f"--kv-cache-dtype {kv_cache_dtype}"
    return None


def bind_sparse_mla(
    layers: Any, kv_cache_dtype: str, index_top_k: int, device: torch.device
) -> dict[tuple[str, int], Kernel]:
    """(slot, id of attention module) -> kernel. One set of buffers serves every layer."""
    heads = layers[0].self_attn.num_local_heads
    shape = Shape(heads, index_top_k, fp8=kv_cache_dtype.startswith("fp8"))
    mla = SparseMla(shape, device)
    out = torch.zeros(MAX_ROWS, heads, LATENT, dtype=torch.bfloat16, device=device)

    def kernel(
        view: StepView,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        forward_batch: Any,
        *,
        layer: Any,
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

    return {
        ("sparse_mla", id(layer.self_attn)): _of_layer(kernel, layer.self_attn.attn_mqa) for layer in layers
    }


def _of_layer(kernel: Any, attention: Any) -> Kernel:
    def bound(view: StepView, *args: Any, **kwargs: Any) -> torch.Tensor:
        return kernel(view, *args, layer=attention, **kwargs)

    return bound
