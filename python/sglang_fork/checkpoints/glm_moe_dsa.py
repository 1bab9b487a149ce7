# SPDX-License-Identifier: Apache-2.0
"""Tiny GLM-5 (GlmMoeDsa): one dense and three MoE layers of sparse MLA, one layer reusing its neighbour's
top-k, NextN.

MLA sizes are the real ones (512 + 64 latent, 192 + 64 query, 256 value channels); the indexer keeps 64
tokens, so that a prompt of a few hundred selects.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sglang_fork.checkpoints import tokenizer
from sglang_fork.checkpoints.weights import Spec, matrix, normal

HIDDEN, DENSE_WIDTH = 256, 512
INDEXER_TYPES = ("full", "full", "shared", "full")
HEADS, NOPE_DIM, ROPE_DIM, VALUE_DIM = 8, 192, 64, 256
QUERY_RANK, LATENT_RANK = 256, 512
INDEX_HEADS, INDEX_DIM, INDEX_TOP_K = 32, 128, 64
EXPERTS, TOP_K, EXPERT_WIDTH = 8, 2, 128
CONTEXT = 8192

CHAT_TEMPLATE = (
    "[gMASK]<sop>"
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

TOKENS = tokenizer.Family(
    special=(
        "<|endoftext|>",
        "[gMASK]",
        "<sop>",
        "<|system|>",
        "<|user|>",
        "<|assistant|>",
        "<|observation|>",
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
        "<tool_response>",
        "</tool_response>",
    ),
    bos=None,
    eos="<|endoftext|>",
    pad="<|endoftext|>",
    chat_template=CHAT_TEMPLATE,
)


def config() -> dict[str, Any]:
    layers = len(INDEXER_TYPES)
    return {
        "architectures": ["GlmMoeDsaForCausalLM"],
        "model_type": "glm_moe_dsa",
        "dtype": "bfloat16",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": TOKENS.token_id(TOKENS.eos),
        "pad_token_id": TOKENS.token_id(TOKENS.pad),
        "vocab_size": tokenizer.VOCAB_SIZE,
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "intermediate_size": DENSE_WIDTH,
        "moe_intermediate_size": EXPERT_WIDTH,
        "num_hidden_layers": layers,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "mlp_layer_types": ["dense", *["sparse"] * (layers - 1)],
        "num_nextn_predict_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "q_lora_rank": QUERY_RANK,
        "kv_lora_rank": LATENT_RANK,
        "qk_nope_head_dim": NOPE_DIM,
        "qk_rope_head_dim": ROPE_DIM,
        "qk_head_dim": NOPE_DIM + ROPE_DIM,
        "head_dim": ROPE_DIM,
        "v_head_dim": VALUE_DIM,
        "n_routed_experts": EXPERTS,
        "n_shared_experts": 1,
        "num_experts_per_tok": TOP_K,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "ep_size": 1,
        "index_head_dim": INDEX_DIM,
        "index_n_heads": INDEX_HEADS,
        "index_topk": INDEX_TOP_K,
        "indexer_rope_interleave": True,
        "indexer_types": list(INDEXER_TYPES),
        "rope_interleave": True,
        "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-05,
        "tie_word_embeddings": False,
    }


def norm(name: str, width: int) -> Spec:
    return Spec(name, (width,), normal(0.1, 1.0))


def mlp(prefix: str, width: int) -> Iterator[Spec]:
    yield matrix(f"{prefix}.gate_proj.weight", width, HIDDEN, gain=1.5)
    yield matrix(f"{prefix}.up_proj.weight", width, HIDDEN, gain=1.5)
    yield matrix(f"{prefix}.down_proj.weight", HIDDEN, width, gain=1.5)


def moe(prefix: str) -> Iterator[Spec]:
    yield matrix(f"{prefix}.gate.weight", EXPERTS, HIDDEN)
    yield Spec(f"{prefix}.gate.e_score_correction_bias", (EXPERTS,), normal(0.02), dtype="F32")
    for expert in range(EXPERTS):
        yield from mlp(f"{prefix}.experts.{expert}", EXPERT_WIDTH)
    yield from mlp(f"{prefix}.shared_experts", EXPERT_WIDTH)


def indexer(prefix: str) -> Iterator[Spec]:
    yield matrix(f"{prefix}.wq_b.weight", INDEX_HEADS * INDEX_DIM, QUERY_RANK)
    yield matrix(f"{prefix}.wk.weight", INDEX_DIM, HIDDEN)
    yield norm(f"{prefix}.k_norm.weight", INDEX_DIM)
    yield Spec(f"{prefix}.k_norm.bias", (INDEX_DIM,), normal(0.1))
    yield matrix(f"{prefix}.weights_proj.weight", INDEX_HEADS, HIDDEN)


def attention(prefix: str, index: bool) -> Iterator[Spec]:
    yield matrix(f"{prefix}.q_a_proj.weight", QUERY_RANK, HIDDEN)
    yield norm(f"{prefix}.q_a_layernorm.weight", QUERY_RANK)
    yield matrix(f"{prefix}.q_b_proj.weight", HEADS * (NOPE_DIM + ROPE_DIM), QUERY_RANK, gain=1.5)
    yield matrix(f"{prefix}.kv_a_proj_with_mqa.weight", LATENT_RANK + ROPE_DIM, HIDDEN)
    yield norm(f"{prefix}.kv_a_layernorm.weight", LATENT_RANK)
    yield matrix(f"{prefix}.kv_b_proj.weight", HEADS * (NOPE_DIM + VALUE_DIM), LATENT_RANK, gain=1.5)
    yield matrix(f"{prefix}.o_proj.weight", HIDDEN, HEADS * VALUE_DIM, gain=1.5)
    if index:
        yield from indexer(f"{prefix}.indexer")


def layer(prefix: str, index: bool, dense: bool) -> Iterator[Spec]:
    yield norm(f"{prefix}.input_layernorm.weight", HIDDEN)
    yield from attention(f"{prefix}.self_attn", index)
    yield norm(f"{prefix}.post_attention_layernorm.weight", HIDDEN)
    yield from mlp(f"{prefix}.mlp", DENSE_WIDTH) if dense else moe(f"{prefix}.mlp")


def next_token_layer(prefix: str) -> Iterator[Spec]:
    """The NextN layer, the layer after the last: normed embedding and state, joined by ``eh_proj``."""
    yield norm(f"{prefix}.enorm.weight", HIDDEN)
    yield norm(f"{prefix}.hnorm.weight", HIDDEN)
    yield matrix(f"{prefix}.eh_proj.weight", HIDDEN, 2 * HIDDEN)
    yield from layer(prefix, index=True, dense=False)
    yield norm(f"{prefix}.shared_head.norm.weight", HIDDEN)


def specs() -> Iterator[Spec]:
    yield Spec("model.embed_tokens.weight", (tokenizer.VOCAB_SIZE, HIDDEN), normal(1.0))
    for index, kind in enumerate(INDEXER_TYPES):
        yield from layer(f"model.layers.{index}", kind == "full", dense=index == 0)
    yield from next_token_layer(f"model.layers.{len(INDEXER_TYPES)}")
    yield norm("model.norm.weight", HIDDEN)
    yield matrix("lm_head.weight", tokenizer.VOCAB_SIZE, HIDDEN, gain=3.0)
