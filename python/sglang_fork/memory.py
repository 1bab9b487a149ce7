# SPDX-License-Identifier: Apache-2.0
"""How much memory a preset's weights and caches take on one GPU, computed from the model's published shapes.

The count is of the large matrices: experts, attention and recurrent projections, embeddings, draft layers.
Norms, biases and router corrections are left out (under 0.1 %). Activations, CUDA graphs and library
workspaces are not counted: SGLang keeps them in what ``--mem-fraction-static`` leaves free.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sglang_fork.errors import ForkError
from sglang_fork.preset import FOLDER, Preset

GIB = 2**30

# Bytes a weight, block scales included: NVFP4 one E4M3 a 16, MXFP4 one E8M0 a 32, FP8 one scale a block.
BYTES = {"bf16": 2.0, "fp8": 1.0, "nvfp4": 0.5 + 1 / 16, "mxfp4": 0.5 + 1 / 32}


@dataclass(frozen=True)
class Parameters:
    """Matrix elements by the format that stores them, over all ranks, and what a cached token takes.

    ``kv_head_elements`` are one KV head's over all layers: a rank holds at least one of ``kv_heads``.
    ``kv_replicated_elements`` (MLA, indexer keys) are whole on every rank.
    """

    experts: float
    dense: float
    draft: float
    host: float
    kv_heads: int
    kv_head_elements: float
    kv_replicated_elements: float
    state_elements: float


@dataclass(frozen=True)
class Estimate:
    """Bytes on one GPU, except ``host``: bytes of host memory on the whole node."""

    weights: float
    token: float
    request: float
    host: float

    def lines(self) -> list[str]:
        out = [
            f"weights {self.weights / GIB:.1f} GiB a GPU",
            f"KV cache {self.token / 1024:.1f} KiB a token and GPU",
        ]
        if self.request:
            out.append(f"recurrent state {self.request / 2**20:.1f} MiB a request and GPU")
        if self.host:
            out.append(f"host tables {self.host / GIB:.0f} GiB a node")
        return out


def config(name: str) -> dict[str, Any]:
    """A model's published configuration, as ``presets/configs`` holds it."""
    try:
        return dict(json.loads((FOLDER / "configs" / f"{name}.json").read_text()))
    except FileNotFoundError:
        raise ForkError(f"no model configuration {name}", f"add presets/configs/{name}.json") from None


def estimate(preset: Preset, *, tensor: int | None = None, attention_data: int | None = None) -> Estimate:
    """The estimate of one GPU's share, under the preset's own parallel sizes or the given ones.

    ``tensor`` is ``--tp-size`` (all ranks that share a copy of the model), ``attention_data`` how many
    groups of them ``--attn-dp-size`` makes.
    """
    counted = count(config(preset.weights.config))
    ranks = tensor or _size(preset, "tp-size")
    shared = max(ranks // (attention_data or _size(preset, "attn-dp-size")), 1)
    weights = preset.weights
    sharded_by = {"experts": ranks, "dense": shared, "draft": ranks}
    total = sum(
        getattr(counted, part) * BYTES[getattr(weights, part)] / over for part, over in sharded_by.items()
    )
    host = counted.host * BYTES["fp8"]
    if not weights.host_tables:
        total, host = total + host / ranks, 0.0
    kv_bytes = 1.0 if str(_value(preset, "kv-cache-dtype")).startswith("fp8") else 2.0
    heads = max(counted.kv_heads / shared, 1.0) if counted.kv_heads else 0.0
    token = (heads * counted.kv_head_elements + counted.kv_replicated_elements) * kv_bytes
    state_bytes = 4.0 if str(_value(preset, "mamba-ssm-dtype")) == "float32" else 2.0
    return Estimate(total, token, counted.state_elements / shared * state_bytes, host)


def count(cfg: Mapping[str, Any]) -> Parameters:
    """Matrix elements of a configuration; a ForkError for a model type without a rule."""
    text = cfg.get("text_config", cfg)
    for key in (cfg["model_type"], text.get("model_type", "")):
        if key in RULES:
            return RULES[key](text)
    raise ForkError(
        f"no memory rule for model type {cfg['model_type']}", f"known: {', '.join(sorted(RULES))}"
    )


def _value(preset: Preset, flag: str) -> object:
    setting = preset.flags.get(flag)
    return None if setting is None else setting.value


def _size(preset: Preset, flag: str) -> int:
    return int(str(_value(preset, flag) or 1))


def _qwen3_5(c: Mapping[str, Any]) -> Parameters:
    h, layers, vocab = c["hidden_size"], c["num_hidden_layers"], c["vocab_size"]
    full = layers // c["full_attention_interval"]
    heads, kv, dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
    key = c["linear_num_key_heads"] * c["linear_key_head_dim"]
    value = c["linear_num_value_heads"] * c["linear_value_head_dim"]
    attention = h * dim * (2 * heads + 2 * kv) + heads * dim * h
    linear = h * (2 * key + 2 * value + 2 * c["linear_num_value_heads"]) + value * h
    shared = 3 * h * c["shared_expert_intermediate_size"] + h * c["num_experts"]
    experts = 3 * h * c["moe_intermediate_size"] * c["num_experts"]
    draft = c["mtp_num_hidden_layers"]
    return Parameters(
        experts=layers * experts,
        dense=full * attention + (layers - full) * linear + layers * shared + 2 * vocab * h,
        draft=draft * (attention + shared + experts + 2 * h * h),
        host=0,
        kv_heads=kv,
        kv_head_elements=(full + draft) * 2 * dim,
        kv_replicated_elements=0,
        state_elements=(layers - full)
        * (value * c["linear_key_head_dim"] + (2 * key + value) * c["linear_conv_kernel_dim"]),
    )


def _mla(c: Mapping[str, Any]) -> float:
    h, heads = c["hidden_size"], c["num_attention_heads"]
    nope, rope, lora = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["kv_lora_rank"]
    query = h * c["q_lora_rank"] + c["q_lora_rank"] * heads * (nope + rope)
    compressed = h * (lora + rope) + lora * heads * (nope + c["v_head_dim"])
    return float(query + compressed + heads * c["v_head_dim"] * h)


def _deepseek_like(c: Mapping[str, Any]) -> Parameters:
    """MLA with routed experts: GLM-5.2 (with its sparse indexer and NextN layer) and Mistral-Small-4."""
    h, layers, dense = c["hidden_size"], c["num_hidden_layers"], c["first_k_dense_replace"]
    moe, draft = layers - dense, c.get("num_nextn_predict_layers", 0)
    expert = 3 * h * c["moe_intermediate_size"]
    experts = expert * c["n_routed_experts"]
    beside = expert * c["n_shared_experts"] + h * c["n_routed_experts"]
    index_dim, full = c.get("index_head_dim", 0), c.get("indexer_types", []).count("full")
    indexer = 0
    if index_dim:
        indexer = c["q_lora_rank"] * c["index_n_heads"] * index_dim + h * (index_dim + c["index_n_heads"])
    return Parameters(
        experts=moe * experts,
        dense=layers * _mla(c)
        + full * indexer
        + dense * 3 * h * c["intermediate_size"]
        + moe * beside
        + 2 * c["vocab_size"] * h,
        draft=draft * (_mla(c) + indexer + experts + beside + 2 * h * h),
        host=0,
        kv_heads=0,
        kv_head_elements=0,
        kv_replicated_elements=(layers + draft) * (c["kv_lora_rank"] + c["qk_rope_head_dim"])
        + (full + draft) * index_dim,
        state_elements=0,
    )


def _deepseek_v41(c: Mapping[str, Any]) -> Parameters:
    h, layers, heads, dim = c["hidden_size"], c["num_hidden_layers"], c["num_attention_heads"], c["head_dim"]
    expert = 3 * h * c["moe_intermediate_size"]
    output = heads * dim * c["o_lora_rank"] + c["o_groups"] * c["o_lora_rank"] * h
    attention = h * c["q_lora_rank"] + c["q_lora_rank"] * heads * dim + h * dim + output
    indexer = c["q_lora_rank"] * c["index_n_heads"] * c["index_head_dim"] + h * c["index_n_heads"]
    compressors = sum(2 * h * dim * (2 if ratio > 1 else 1) for ratio in c["compress_ratios"] if ratio)
    draft = c["num_nextn_predict_layers"]
    draft_layer = attention + expert * (c["dspark_n_routed_experts"] + 1)
    cached = sum(dim / ratio for ratio in c["compress_ratios"] if ratio)
    return Parameters(
        experts=layers * expert * c["n_routed_experts"],
        dense=layers * (attention + expert * c["n_shared_experts"] + h * c["n_routed_experts"])
        + len(c["index_source_layer_ids"]) * indexer
        + compressors
        + 2 * c["vocab_size"] * h,
        draft=draft * draft_layer + 2 * c["dspark_markov_rank"] * c["vocab_size"],
        host=sum(c["engram_num_embeddings"]) * c["engram_head_dim"],
        kv_heads=0,
        kv_head_elements=0,
        kv_replicated_elements=cached + len(c["index_source_layer_ids"]) * c["index_head_dim"],
        state_elements=0,
    )


def _kimi_k3(c: Mapping[str, Any]) -> Parameters:
    h, layers, dense = c["hidden_size"], c["num_hidden_layers"], c["first_k_dense_replace"]
    linear = c["linear_attn_config"]
    full, kda = len(linear["full_attn_layers"]), len(linear["kda_layers"])
    width = linear["num_heads"] * linear["head_dim"]
    gates = h * width + h * linear["num_heads"] + h * linear["head_dim"] + linear["head_dim"] * width
    latent, inter = c["routed_expert_hidden_size"], c["moe_intermediate_size"]
    moe = layers - dense
    beside = 2 * h * latent + h * c["num_experts"] + 3 * h * inter * c["num_shared_experts"]
    output_gate = h * c["num_attention_heads"] * c["v_head_dim"]
    return Parameters(
        experts=moe * c["num_experts"] * 3 * latent * inter,
        dense=full * (_mla(c) + output_gate)
        + kda * (4 * h * width + gates)
        + moe * beside
        + dense * 3 * h * c["intermediate_size"]
        + 2 * c["vocab_size"] * h,
        draft=0,
        host=0,
        kv_heads=0,
        kv_head_elements=0,
        kv_replicated_elements=full * (c["kv_lora_rank"] + c["qk_rope_head_dim"]),
        state_elements=kda * (width * linear["head_dim"] + 3 * width * linear["short_conv_kernel_size"]),
    )


def _qwen3_moe(c: Mapping[str, Any]) -> Parameters:
    h, layers, dim = c["hidden_size"], c["num_hidden_layers"], c["head_dim"]
    heads, kv = c["num_attention_heads"], c["num_key_value_heads"]
    return Parameters(
        experts=layers * c["num_experts"] * 3 * h * c["moe_intermediate_size"],
        dense=layers * (2 * heads * dim * h + 2 * kv * dim * h + h * c["num_experts"])
        + 2 * c["vocab_size"] * h,
        draft=0,
        host=0,
        kv_heads=kv,
        kv_head_elements=layers * 2 * dim,
        kv_replicated_elements=0,
        state_elements=0,
    )


def _stated(c: Mapping[str, Any]) -> Parameters:
    """A model of which only the published parameter count is known."""
    return Parameters(c["parameters"], 0, 0, 0, 0, 0, 0, 0)


RULES: dict[str, Callable[[Mapping[str, Any]], Parameters]] = {
    "qwen3_5_moe": _qwen3_5,
    "glm_moe_dsa": _deepseek_like,
    "mistral4": _deepseek_like,
    "deepseek_v41": _deepseek_v41,
    "kimi_k3": _kimi_k3,
    "qwen3_moe": _qwen3_moe,
    "nemotron_h": _stated,
}
