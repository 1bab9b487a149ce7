# SPDX-License-Identifier: Apache-2.0
"""One rank of Kimi K3's text model: three KDA layers and one gated MLA layer, in turn, with latent MoE."""

from __future__ import annotations

from typing import Any

from sglang_fork.bench.shapes import Slice, bytes_per_weight, share, whole_groups
from sglang_fork.errors import ForkError

# KDA, KDA, KDA, MLA.
GROUP = 4

# The released checkpoint's own description: experts packed in groups of 32, everything else BF16.
MXFP4_EXPERTS = {
    "quant_method": "compressed-tensors",
    "format": "mxfp4-pack-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "format": "mxfp4-pack-quantized",
            "weights": {
                "num_bits": 4,
                "type": "float",
                "strategy": "group",
                "group_size": 32,
                "symmetric": True,
                "dynamic": False,
            },
        }
    },
    "ignore": [
        "lm_head",
        "re:.*self_attn.*",
        "re:.*shared_experts.*",
        "re:.*routed_expert_.*",
        "re:.*mlp\\.gate$",
        "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
    ],
}


def build(production: dict[str, Any], tp: int, layers: int, weights: str) -> Slice:
    """The rank's share of heads, expert, shared and dense widths and vocabulary. The first layer is dense, as
    at production; the latent projections are whole on every rank."""
    layers = whole_groups(layers, GROUP, "Kimi K3")
    if weights not in ("bf16", "mxfp4"):
        raise ForkError(f"a Kimi K3 slice has bf16 or mxfp4 experts, not {weights}")
    hidden, latent = production["hidden_size"], production["routed_expert_hidden_size"]
    heads = share(production["num_attention_heads"], tp, "attention heads")
    width = share(production["moe_intermediate_size"], tp, "expert width")
    dense = share(production["intermediate_size"], tp, "dense width")
    vocab = share(production["vocab_size"], tp, "vocabulary")
    linear = production["linear_attn_config"]
    head_dim, conv = linear["head_dim"], linear["short_conv_kernel_size"]
    experts, top_k = production["num_experts"], production["num_experts_per_token"]
    config: dict[str, Any] = {
        **{k: v for k, v in production.items() if k != "experts_format" and not k.startswith("_")},
        "architectures": ["KimiK3LinearForCausalLM"],
        "model_type": "kimi_linear",
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": head_dim,
        "linear_attn_config": {
            **linear,
            "num_heads": heads,
            "kda_layers": [i for i in linear["kda_layers"] if i <= layers],
            "full_attn_layers": [i for i in linear["full_attn_layers"] if i <= layers],
        },
        "moe_intermediate_size": width,
        "intermediate_size": dense,
        "vocab_size": vocab,
        "rope_theta": 10000.0,
        "dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
    }
    if weights == "mxfp4":
        config["quantization_config"] = MXFP4_EXPERTS
    inner = heads * head_dim
    kda = hidden * (4 * inner + heads + head_dim) + inner * head_dim + inner * hidden + 2 * 3 * inner * conv
    q_lora, kv_lora = production["q_lora_rank"], production["kv_lora_rank"]
    nope, rope, value = (production[k] for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    mla = (
        hidden * (q_lora + kv_lora + rope)
        + q_lora * heads * (nope + rope)
        + heads * kv_lora * (nope + value)
        + 2 * hidden * heads * value
    )
    shared = 3 * hidden * width * production["num_shared_experts"]
    moe = hidden * experts + shared + 2 * hidden * latent
    full = layers // GROUP
    return Slice(
        family="kimi_k3",
        name=f"tp{tp}",
        layers=layers,
        weights=weights,
        config=config,
        experts=experts,
        top_k=top_k,
        moe_layers=layers - 1,
        expert_bytes=round(3 * latent * width * bytes_per_weight(weights)),
        dense_bytes=2 * ((layers - full) * kda + full * mla + 3 * hidden * dense + (layers - 1) * moe),
        head_bytes=2 * hidden * vocab,
    )
