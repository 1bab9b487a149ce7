# SPDX-License-Identifier: Apache-2.0
"""Tiny Kimi K3: three KDA layers and one gated NoPE-MLA layer, latent MoE with SiTU, attention residual banks
of two.

Head sizes are the real ones (KDA 128, MLA 512 latent with 128 + 64 query channels). Six heads, because
upstream's fused KDA decode takes 3, 6 or 12 a rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sglang_fork.checkpoints import tokenizer
from sglang_fork.checkpoints.weights import Spec, matrix, normal, uniform

HIDDEN, DENSE_WIDTH = 256, 512
KDA_LAYERS, MLA_LAYERS = (1, 2, 3), (4,)  # one-based, as the configuration counts
HEADS, HEAD_DIM, CONV_WIDTH = 6, 128, 4
QUERY_RANK, LATENT_RANK, NOPE_DIM, ROPE_DIM, VALUE_DIM = 256, 512, 128, 64, 128
EXPERTS, TOP_K, EXPERT_WIDTH, SHARED_EXPERTS, LATENT_MOE = 8, 2, 128, 2, 256
CONTEXT = 8192

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_' + message['role'] + '|>' + message['role'] + '<|im_middle|>' }}"
    "{{ message['content'] + '<|im_end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_assistant|>assistant<|im_middle|>' }}{% endif %}"
)

TOKENS = tokenizer.Family(
    special=(
        "[BOS]",
        "[EOS]",
        "[PAD]",
        "<|im_system|>",
        "<|im_user|>",
        "<|im_assistant|>",
        "<|im_middle|>",
        "<|im_end|>",
        "<think>",
        "</think>",
    ),
    bos="[BOS]",
    eos="[EOS]",
    pad="[PAD]",
    chat_template=CHAT_TEMPLATE,
)


def config() -> dict[str, Any]:
    return {
        "architectures": ["KimiK3LinearForCausalLM"],
        "model_type": "kimi_linear",
        "dtype": "bfloat16",
        "bos_token_id": TOKENS.token_id("[BOS]"),
        "eos_token_id": TOKENS.token_id("[EOS]"),
        "pad_token_id": TOKENS.token_id("[PAD]"),
        "vocab_size": tokenizer.VOCAB_SIZE,
        "hidden_size": HIDDEN,
        "intermediate_size": DENSE_WIDTH,
        "moe_intermediate_size": EXPERT_WIDTH,
        "num_hidden_layers": len(KDA_LAYERS) + len(MLA_LAYERS),
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "situ",
        "activation_situ_beta": 4.0,
        "activation_situ_linear_beta": 25.0,
        "q_lora_rank": QUERY_RANK,
        "kv_lora_rank": LATENT_RANK,
        "qk_nope_head_dim": NOPE_DIM,
        "qk_rope_head_dim": ROPE_DIM,
        "v_head_dim": VALUE_DIM,
        "mla_use_nope": True,
        "mla_use_output_gate": True,
        "num_experts": EXPERTS,
        "num_experts_per_token": TOP_K,
        "num_shared_experts": SHARED_EXPERTS,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "moe_renormalize": True,
        "moe_router_activation_func": "sigmoid",
        "routed_scaling_factor": 1.0,
        "use_grouped_topk": True,
        "num_expert_group": 1,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "routed_expert_hidden_size": LATENT_MOE,
        "latent_moe_use_norm": True,
        "attn_res_block_size": 2,
        "linear_attn_config": {
            "kda_layers": list(KDA_LAYERS),
            "full_attn_layers": list(MLA_LAYERS),
            "num_heads": HEADS,
            "head_dim": HEAD_DIM,
            "short_conv_kernel_size": CONV_WIDTH,
            "use_full_rank_gate": True,
            "gate_lower_bound": -5.0,
        },
        "rope_theta": 10000.0,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-05,
        "tie_word_embeddings": False,
    }


def norm(name: str, width: int) -> Spec:
    return Spec(name, (width,), normal(0.1, 1.0))


def kda(prefix: str) -> Iterator[Spec]:
    width = HEADS * HEAD_DIM
    for letter in "qkvg":
        yield matrix(f"{prefix}.{letter}_proj.weight", width, HIDDEN, gain=1.5)
    for letter in "qkv":
        yield Spec(f"{prefix}.{letter}_conv1d.weight", (width, 1, CONV_WIDTH), normal(0.5), dtype="F32")
    yield matrix(f"{prefix}.b_proj.weight", HEADS, HIDDEN)
    yield matrix(f"{prefix}.f_a_proj.weight", HEAD_DIM, HIDDEN)
    yield matrix(f"{prefix}.f_b_proj.weight", width, HEAD_DIM)
    yield Spec(f"{prefix}.A_log", (1, 1, HEADS, 1), uniform(0.0, 1.5), dtype="F32")
    yield Spec(f"{prefix}.dt_bias", (width,), uniform(-4.0, -1.0), dtype="F32")
    yield norm(f"{prefix}.o_norm.weight", HEAD_DIM)
    yield matrix(f"{prefix}.o_proj.weight", HIDDEN, width, gain=2.5)


def mla(prefix: str) -> Iterator[Spec]:
    yield matrix(f"{prefix}.q_a_proj.weight", QUERY_RANK, HIDDEN)
    yield norm(f"{prefix}.q_a_layernorm.weight", QUERY_RANK)
    yield matrix(f"{prefix}.q_b_proj.weight", HEADS * (NOPE_DIM + ROPE_DIM), QUERY_RANK, gain=1.5)
    yield matrix(f"{prefix}.kv_a_proj_with_mqa.weight", LATENT_RANK + ROPE_DIM, HIDDEN)
    yield norm(f"{prefix}.kv_a_layernorm.weight", LATENT_RANK)
    yield matrix(f"{prefix}.kv_b_proj.weight", HEADS * (NOPE_DIM + VALUE_DIM), LATENT_RANK, gain=1.5)
    yield matrix(f"{prefix}.g_proj.weight", HEADS * VALUE_DIM, HIDDEN)
    yield matrix(f"{prefix}.o_proj.weight", HIDDEN, HEADS * VALUE_DIM, gain=2.5)


def mlp(prefix: str, width: int) -> Iterator[Spec]:
    yield matrix(f"{prefix}.gate_proj.weight", width, HIDDEN, gain=1.5)
    yield matrix(f"{prefix}.up_proj.weight", width, HIDDEN, gain=1.5)
    yield matrix(f"{prefix}.down_proj.weight", HIDDEN, width, gain=1.5)


def moe(prefix: str) -> Iterator[Spec]:
    """Latent MoE: ``routed_expert_down_proj``, experts in the latent width, their sum normed,
    ``routed_expert_up_proj``.
    """
    yield matrix(f"{prefix}.gate.weight", EXPERTS, HIDDEN)
    yield Spec(f"{prefix}.gate.e_score_correction_bias", (EXPERTS,), normal(0.02), dtype="F32")
    yield matrix(f"{prefix}.routed_expert_down_proj.weight", LATENT_MOE, HIDDEN, gain=1.5)
    for expert in range(EXPERTS):
        yield matrix(f"{prefix}.experts.{expert}.w1.weight", EXPERT_WIDTH, LATENT_MOE, gain=1.5)
        yield matrix(f"{prefix}.experts.{expert}.w3.weight", EXPERT_WIDTH, LATENT_MOE, gain=1.5)
        yield matrix(f"{prefix}.experts.{expert}.w2.weight", LATENT_MOE, EXPERT_WIDTH, gain=1.5)
    yield norm(f"{prefix}.routed_expert_norm.weight", LATENT_MOE)
    yield matrix(f"{prefix}.routed_expert_up_proj.weight", HIDDEN, LATENT_MOE, gain=1.5)
    yield from mlp(f"{prefix}.shared_experts", SHARED_EXPERTS * EXPERT_WIDTH)


def layer(index: int) -> Iterator[Spec]:
    prefix = f"model.layers.{index}"
    yield norm(f"{prefix}.input_layernorm.weight", HIDDEN)
    yield from kda(f"{prefix}.self_attn") if index + 1 in KDA_LAYERS else mla(f"{prefix}.self_attn")
    yield norm(f"{prefix}.post_attention_layernorm.weight", HIDDEN)
    if index == 0:
        yield from mlp(f"{prefix}.mlp", DENSE_WIDTH)
    else:
        yield from moe(f"{prefix}.mlp")
    for part in ("self_attention", "mlp"):
        yield norm(f"{prefix}.{part}_res_norm.weight", HIDDEN)
        yield matrix(f"{prefix}.{part}_res_proj.weight", 1, HIDDEN)


def specs() -> Iterator[Spec]:
    yield Spec("model.embed_tokens.weight", (tokenizer.VOCAB_SIZE, HIDDEN), normal(1.0))
    for index in range(len(KDA_LAYERS) + len(MLA_LAYERS)):
        yield from layer(index)
    yield norm("model.output_attn_res_norm.weight", HIDDEN)
    yield matrix("model.output_attn_res_proj.weight", 1, HIDDEN)
    yield norm("model.norm.weight", HIDDEN)
    yield matrix("lm_head.weight", tokenizer.VOCAB_SIZE, HIDDEN, gain=3.0)
