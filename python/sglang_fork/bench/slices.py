# SPDX-License-Identifier: Apache-2.0
"""Rank slices: a model config whose every matrix has the shape that one tensor-parallel rank holds.

A slice has the production hidden size, head sizes, expert count and top-k, and the rank's share of heads,
expert width and vocabulary, with fewer layers. It runs on one GPU without collectives; both arms elide them,
and reports say so. ``whole`` is the model itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from sglang_fork.bench import deepseek_v41_slice, kimi_k3_slice
from sglang_fork.bench.shapes import (
    FP8_BYTES,
    NVFP4_IGNORE,
    WEIGHTS,
    Slice,
    block_fp8,
    bytes_per_weight,
    modelopt_mixed,
    modelopt_nvfp4,
    share,
    whole_groups,
)
from sglang_fork.errors import ForkError

__all__ = ["BUILDERS", "WEIGHTS", "Slice", "build", "to_json"]


def qwen3_5(production: dict[str, Any], tp: int, layers: int, weights: str) -> Slice:
    """Qwen3.5-MoE: three GatedDeltaNet layers and one full-attention layer, in turn."""
    interval = production["full_attention_interval"]
    layers = whole_groups(layers, interval, "Qwen3.5")
    hidden, head = production["hidden_size"], production["head_dim"]
    q_heads = share(production["num_attention_heads"], tp, "attention heads")
    kv_heads = max(1, production["num_key_value_heads"] // tp)
    k_heads = share(production["linear_num_key_heads"], tp, "GatedDeltaNet key heads")
    v_heads = share(production["linear_num_value_heads"], tp, "GatedDeltaNet value heads")
    width = share(production["moe_intermediate_size"], tp, "expert width")
    shared = share(production["shared_expert_intermediate_size"], tp, "shared expert width")
    vocab = share(production["vocab_size"], tp, "vocabulary")
    experts, top_k = production["num_experts"], production["num_experts_per_tok"]
    config: dict[str, Any] = {
        **{k: v for k, v in production.items() if not k.startswith("_")},
        "architectures": ["Qwen3_5MoeForCausalLM"],
        "num_hidden_layers": layers,
        "num_attention_heads": q_heads,
        "num_key_value_heads": kv_heads,
        "linear_num_key_heads": k_heads,
        "linear_num_value_heads": v_heads,
        "moe_intermediate_size": width,
        "shared_expert_intermediate_size": shared,
        "intermediate_size": shared,
        "vocab_size": vocab,
        "hidden_act": "silu",
        "dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 1,
        "attention_bias": False,
        "layer_types": (["linear_attention"] * (interval - 1) + ["full_attention"]) * (layers // interval),
        "mamba_ssm_dtype": "float32",
    }
    if weights == "nvfp4":
        config["quantization_config"] = modelopt_nvfp4(NVFP4_IGNORE)
    elif weights == "nvfp4-fp8":
        config["quantization_config"] = modelopt_mixed(_qwen3_5_formats(config["layer_types"]))
    elif weights == "fp8":
        config["quantization_config"] = block_fp8(_qwen3_5_plain(config["layer_types"]))
    elif weights != "bf16":
        raise ForkError(f"a Qwen3.5 slice has bf16, fp8, nvfp4 or nvfp4-fp8 weights, not {weights}")
    k_dim, v_dim = production["linear_key_head_dim"], production["linear_value_head_dim"]
    gdn = hidden * (2 * k_heads * k_dim + 2 * v_heads * v_dim + 2 * v_heads) + v_heads * v_dim * hidden
    attention = hidden * head * (2 * q_heads + 2 * kv_heads) + q_heads * head * hidden
    gates, expert = hidden * (experts + 1), 3 * hidden * shared
    full = layers // interval
    dense = 2 * (layers * (gates + expert) + (layers - full) * gdn + full * attention)
    parts = {
        "gdn": 2 * (layers - full) * gdn,
        "attention": 2 * full * attention,
        "moe": 2 * layers * (gates + expert),
    }
    if weights in ("fp8", "nvfp4-fp8"):  # in_proj_ba, router and shared gate stay BF16
        eight_bit = layers * expert + (layers - full) * (gdn - 2 * hidden * v_heads) + full * attention
        dense -= round(eight_bit * (2 - (FP8_BYTES if weights == "fp8" else 1)))
    return Slice(
        family="qwen3_5",
        name="whole" if tp == 1 and layers == production["num_hidden_layers"] else f"tp{tp}",
        layers=layers,
        weights=weights,
        config=config,
        experts=experts,
        top_k=top_k,
        moe_layers=layers,
        expert_bytes=round(3 * hidden * width * bytes_per_weight(weights)),
        dense_bytes=dense,
        head_bytes=2 * hidden * vocab,
        parts=parts if weights in ("bf16", "nvfp4") else {},
    )


def _qwen3_5_formats(layer_types: list[str]) -> dict[str, str]:
    """Module name -> format of a checkpoint with NVFP4 experts and FP8 projections."""
    mixers = {
        "linear_attention": ("linear_attn.in_proj_qkvz", "linear_attn.out_proj"),
        "full_attention": ("self_attn.qkv_proj", "self_attn.o_proj"),
    }
    shared = ("mlp.shared_expert.gate_up_proj", "mlp.shared_expert.down_proj")
    formats: dict[str, str] = {}
    for index, kind in enumerate(layer_types):
        formats |= {f"model.layers.{index}.{name}": "FP8" for name in (*mixers[kind], *shared)}
        formats[f"model.layers.{index}.mlp.experts"] = "NVFP4"
    return formats


def _qwen3_5_plain(layer_types: list[str]) -> list[str]:
    """Modules of an FP8 checkpoint that stay BF16: routers, gates and GatedDeltaNet's decay and beta."""
    names = ["lm_head", "model.embed_tokens"]
    for index, kind in enumerate(layer_types):
        parts = ["mlp.gate", "mlp.shared_expert_gate"]
        if kind == "linear_attention":
            parts += [f"linear_attn.{part}" for part in ("in_proj_ba", "in_proj_a", "in_proj_b", "conv1d")]
        names += [f"model.layers.{index}.{part}" for part in parts]
    return names


def _glm_plain(layers: int) -> list[str]:
    """Modules of an FP8 checkpoint that stay BF16: head, routers and the indexer's weights of its heads."""
    parts = ("mlp.gate", "self_attn.indexer.weights_proj")
    return ["lm_head", *(f"model.layers.{index}.{part}" for index in range(layers) for part in parts)]


def glm(production: dict[str, Any], tp: int, layers: int, weights: str) -> Slice:
    """GLM-5: MLA with sparse attention, one dense layer first, then MoE layers. At production one layer in
    four runs the indexer; the slice keeps that order from its first layer on."""
    if layers < 2:
        raise ForkError(f"a GLM slice has at least 2 layers, not {layers}")
    hidden = production["hidden_size"]
    heads = share(production["num_attention_heads"], tp, "attention heads")
    width = share(production["moe_intermediate_size"], tp, "expert width")
    dense_width = share(production["intermediate_size"], tp, "dense width")
    vocab = share(production["vocab_size"], tp, "vocabulary")
    q_lora, kv_lora = production["q_lora_rank"], production["kv_lora_rank"]
    nope, rope, v_dim = (production[k] for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    indexer = production["indexer_types"][2 : 2 + layers]
    config: dict[str, Any] = {
        **{k: v for k, v in production.items() if not k.startswith("_")},
        "num_hidden_layers": layers,
        "first_k_dense_replace": 1,
        "mlp_layer_types": ["dense"] + ["sparse"] * (layers - 1),
        "indexer_types": indexer,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "moe_intermediate_size": width,
        "intermediate_size": dense_width,
        "vocab_size": vocab,
        "qk_head_dim": nope + rope,
        "head_dim": rope,
        "num_nextn_predict_layers": 0,
        "moe_layer_freq": 1,
        "ep_size": 1,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        "max_position_embeddings": 131072,
        "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
    }
    if weights == "nvfp4":
        config["quantization_config"] = modelopt_nvfp4((*NVFP4_IGNORE, "*layers.0.mlp*"))
    elif weights == "fp8":
        config["quantization_config"] = block_fp8(_glm_plain(layers))
    elif weights != "bf16":
        raise ForkError(f"a GLM slice has bf16, fp8 or nvfp4 weights, not {weights}")
    absorbed = heads * (nope * kv_lora + v_dim * kv_lora)
    attention = (
        hidden * (q_lora + kv_lora + rope)
        + q_lora * heads * (nope + rope)
        + absorbed
        + heads * v_dim * hidden
    )
    index_heads, index_dim = production["index_n_heads"], production["index_head_dim"]
    index = q_lora * index_heads * index_dim + hidden * (index_dim + index_heads)
    router, shared = (
        hidden * production["n_routed_experts"],
        3 * hidden * width * production["n_shared_experts"],
    )
    eight_bit = layers * attention + 3 * hidden * dense_width + (layers - 1) * shared
    eight_bit += indexer.count("full") * (index - hidden * index_heads)
    plain = (layers - 1) * router + indexer.count("full") * hidden * index_heads
    return Slice(
        family="glm_moe_dsa",
        name=f"tp{tp}",
        layers=layers,
        weights=weights,
        config=config,
        experts=production["n_routed_experts"],
        top_k=production["num_experts_per_tok"],
        moe_layers=layers - 1,
        expert_bytes=round(3 * hidden * width * bytes_per_weight(weights)),
        dense_bytes=round(eight_bit * (FP8_BYTES if weights == "fp8" else 2)) + 2 * plain,
        head_bytes=2 * hidden * vocab,
    )


BUILDERS: dict[str, Callable[[dict[str, Any], int, int, str], Slice]] = {
    "qwen3_5": qwen3_5,
    "glm_moe_dsa": glm,
    "deepseek_v41": deepseek_v41_slice.build,
    "kimi_k3": kimi_k3_slice.build,
}


def build(family: str, production: dict[str, Any], *, tp: int, layers: int, weights: str) -> Slice:
    """The slice of ``family`` for one of ``tp`` ranks. Raises ``ForkError`` when shapes do not divide or the
    family has no slice."""
    if family not in BUILDERS:
        raise ForkError(
            f"no rank slice is defined for family {family}",
            f"families with one: {', '.join(sorted(BUILDERS))}",
        )
    return BUILDERS[family](production, tp, layers, weights)


def to_json(config: dict[str, Any]) -> str:
    return json.dumps(config, indent=1)
