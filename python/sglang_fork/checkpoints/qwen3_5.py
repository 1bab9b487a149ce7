# SPDX-License-Identifier: Apache-2.0
"""Tiny Qwen3.5-MoE: three GatedDeltaNet layers, one gated full-attention layer, and the MTP layer.

Tensor names and shapes are those of the published checkpoints (fused expert tensors, text model alone). Head
sizes are the real ones: GDN 128, attention 256 with 64 rotary channels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sglang_fork.checkpoints import tokenizer
from sglang_fork.checkpoints.weights import Spec, matrix, normal, scaled, uniform

HIDDEN = 256
LAYERS = 4
ATTENTION_INTERVAL = 4
HEADS, KV_HEADS, HEAD_DIM = 2, 1, 256
GDN_KEY_HEADS, GDN_VALUE_HEADS, GDN_HEAD_DIM, CONV_WIDTH = 2, 4, 128, 4
EXPERTS, TOP_K, EXPERT_WIDTH, SHARED_WIDTH = 4, 2, 128, 128
CONTEXT = 8192

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

TOKENS = tokenizer.Family(
    special=(
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
    ),
    bos=None,
    eos="<|im_end|>",
    pad="<|endoftext|>",
    chat_template=CHAT_TEMPLATE,
)


def config() -> dict[str, Any]:
    return {
        "architectures": ["Qwen3_5MoeForCausalLM"],
        "model_type": "qwen3_5_moe_text",
        "dtype": "bfloat16",
        "bos_token_id": None,
        "eos_token_id": TOKENS.token_id(TOKENS.eos),
        "pad_token_id": TOKENS.token_id(TOKENS.pad),
        "vocab_size": tokenizer.VOCAB_SIZE,
        "hidden_size": HIDDEN,
        "intermediate_size": SHARED_WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "attention_bias": False,
        "attn_output_gate": True,
        "full_attention_interval": ATTENTION_INTERVAL,
        "layer_types": [
            "linear_attention" if (layer + 1) % ATTENTION_INTERVAL else "full_attention"
            for layer in range(LAYERS)
        ],
        "linear_conv_kernel_dim": CONV_WIDTH,
        "linear_key_head_dim": GDN_HEAD_DIM,
        "linear_value_head_dim": GDN_HEAD_DIM,
        "linear_num_key_heads": GDN_KEY_HEADS,
        "linear_num_value_heads": GDN_VALUE_HEADS,
        "mamba_ssm_dtype": "float32",
        "num_experts": EXPERTS,
        "num_experts_per_tok": TOP_K,
        "moe_intermediate_size": EXPERT_WIDTH,
        "shared_expert_intermediate_size": SHARED_WIDTH,
        "norm_topk_prob": True,
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000000.0,
            "partial_rotary_factor": 0.25,
            "mrope_section": [11, 11, 10],
            "mrope_interleaved": True,
        },
        "partial_rotary_factor": 0.25,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-06,
        "tie_word_embeddings": False,
    }


def norm(name: str, width: int) -> Spec:
    """A zero-centred gain: the model multiplies by ``1 + weight``."""
    return Spec(name, (width,), normal(0.1))


def moe(prefix: str) -> Iterator[Spec]:
    yield matrix(f"{prefix}.gate.weight", EXPERTS, HIDDEN, gain=2.0)
    yield Spec(f"{prefix}.experts.gate_up_proj", (EXPERTS, 2 * EXPERT_WIDTH, HIDDEN), scaled(HIDDEN, 1.5))
    yield Spec(f"{prefix}.experts.down_proj", (EXPERTS, HIDDEN, EXPERT_WIDTH), scaled(EXPERT_WIDTH, 1.5))
    yield matrix(f"{prefix}.shared_expert.gate_proj.weight", SHARED_WIDTH, HIDDEN, gain=1.5)
    yield matrix(f"{prefix}.shared_expert.up_proj.weight", SHARED_WIDTH, HIDDEN, gain=1.5)
    yield matrix(f"{prefix}.shared_expert.down_proj.weight", HIDDEN, SHARED_WIDTH, gain=1.5)
    yield matrix(f"{prefix}.shared_expert_gate.weight", 1, HIDDEN)


def attention(prefix: str) -> Iterator[Spec]:
    yield matrix(f"{prefix}.q_proj.weight", 2 * HEADS * HEAD_DIM, HIDDEN, gain=1.5)
    yield matrix(f"{prefix}.k_proj.weight", KV_HEADS * HEAD_DIM, HIDDEN, gain=1.5)
    yield matrix(f"{prefix}.v_proj.weight", KV_HEADS * HEAD_DIM, HIDDEN, gain=1.5)
    yield matrix(f"{prefix}.o_proj.weight", HIDDEN, HEADS * HEAD_DIM, gain=1.5)
    yield norm(f"{prefix}.q_norm.weight", HEAD_DIM)
    yield norm(f"{prefix}.k_norm.weight", HEAD_DIM)


def delta_net(prefix: str) -> Iterator[Spec]:
    channels = (2 * GDN_KEY_HEADS + GDN_VALUE_HEADS) * GDN_HEAD_DIM
    values = GDN_VALUE_HEADS * GDN_HEAD_DIM
    yield matrix(f"{prefix}.in_proj_qkv.weight", channels, HIDDEN, gain=1.5)
    yield matrix(f"{prefix}.in_proj_z.weight", values, HIDDEN, gain=1.5)
    yield matrix(f"{prefix}.in_proj_b.weight", GDN_VALUE_HEADS, HIDDEN)
    yield matrix(f"{prefix}.in_proj_a.weight", GDN_VALUE_HEADS, HIDDEN)
    yield Spec(f"{prefix}.conv1d.weight", (channels, 1, CONV_WIDTH), normal(0.5))
    yield Spec(f"{prefix}.A_log", (GDN_VALUE_HEADS,), uniform(0.0, 1.5))
    yield Spec(f"{prefix}.dt_bias", (GDN_VALUE_HEADS,), uniform(-4.0, -1.0))
    yield Spec(f"{prefix}.norm.weight", (GDN_HEAD_DIM,), normal(0.1, 1.0))
    yield matrix(f"{prefix}.out_proj.weight", HIDDEN, values, gain=1.5)


def layer(prefix: str, full_attention: bool) -> Iterator[Spec]:
    yield norm(f"{prefix}.input_layernorm.weight", HIDDEN)
    yield from attention(f"{prefix}.self_attn") if full_attention else delta_net(f"{prefix}.linear_attn")
    yield norm(f"{prefix}.post_attention_layernorm.weight", HIDDEN)
    yield from moe(f"{prefix}.mlp")


def mtp() -> Iterator[Spec]:
    """The multi-token-prediction layer: normed embedding and normed target state, joined by ``fc``, one
    attention layer.
    """
    yield norm("mtp.pre_fc_norm_embedding.weight", HIDDEN)
    yield norm("mtp.pre_fc_norm_hidden.weight", HIDDEN)
    yield matrix("mtp.fc.weight", HIDDEN, 2 * HIDDEN)
    yield from layer("mtp.layers.0", full_attention=True)
    yield norm("mtp.norm.weight", HIDDEN)


def specs() -> Iterator[Spec]:
    yield Spec("model.embed_tokens.weight", (tokenizer.VOCAB_SIZE, HIDDEN), normal(1.0))
    for index, kind in enumerate(config()["layer_types"]):
        yield from layer(f"model.layers.{index}", kind == "full_attention")
    yield norm("model.norm.weight", HIDDEN)
    yield matrix("lm_head.weight", tokenizer.VOCAB_SIZE, HIDDEN, gain=3.0)
    yield from mtp()
