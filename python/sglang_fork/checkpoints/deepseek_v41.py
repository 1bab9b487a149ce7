# SPDX-License-Identifier: Apache-2.0
"""Tiny DeepSeek-V4.1: four layers with mHC, compressed sparse attention and Engram, and three DSpark draft
stages.

Head sizes are the real ones (512 = 448 + 64 channels, indexer heads of 128, top-k 512). Layer 0 attends its
window only and routes by token hash; layer 1 compresses by two and holds the Engram; layer 2 keeps every
token; layer 3 reads layer 2's keys and selection. Tensor names are those of the published checkpoint.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from sglang_fork.checkpoints import tokenizer
from sglang_fork.checkpoints.tensorfile import Blob
from sglang_fork.checkpoints.weights import Spec, generator, matrix, normal, scaled, uniform

HIDDEN = 256
COMPRESS_RATIOS = (0, 2, 1, 1)
KV_SOURCES = INDEX_SOURCES = (1, 2)
HASH_LAYERS = 1
HEADS, HEAD_DIM, ROPE_DIM = 8, 512, 64
QUERY_RANK, OUTPUT_RANK, OUTPUT_GROUPS = 256, 128, 2
INDEX_HEADS, INDEX_DIM, INDEX_TOP_K = 32, 128, 512
EXPERTS, TOP_K, EXPERT_WIDTH = 8, 2, 128
STREAMS = 4
CONTEXT = 8192

ENGRAM_LAYER = 1
ENGRAM_NGRAM, ENGRAM_HEADS, ENGRAM_DIM, ENGRAM_BUCKETS = 3, 2, 64, 64
ENGRAM_SCALE_GROUP = 32
# Distinct tokens after the hash's normalisation (case, accents and spaces folded) of the vocabulary below.
ENGRAM_VOCABULARY = 433

DRAFT_BLOCK, DRAFT_STAGES, DRAFT_EXPERTS, DRAFT_TOP_K, MARKOV_RANK = 5, 3, 4, 2, 64
DRAFT_TARGETS = (1, 2, 3)
NOISE_TOKEN = "<|reserved_0|>"

CHAT_TEMPLATE = (
    "<｜begin▁of▁sentence｜>"
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ '<｜User｜>' + message['content'] }}"
    "{% elif message['role'] == 'assistant' %}"
    "{{ '<｜Assistant｜></think>' + message['content'] + '<｜end▁of▁sentence｜>' }}"
    "{% else %}{{ message['content'] }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<｜Assistant｜></think>' }}{% endif %}"
)

TOKENS = tokenizer.Family(
    special=(
        "<｜begin▁of▁sentence｜>",
        "<｜end▁of▁sentence｜>",
        "<｜▁pad▁｜>",
        "<｜User｜>",
        "<｜Assistant｜>",
        "<｜System｜>",
        "<think>",
        "</think>",
        "｜DSML｜",
    ),
    bos="<｜begin▁of▁sentence｜>",
    eos="<｜end▁of▁sentence｜>",
    pad="<｜▁pad▁｜>",
    chat_template=CHAT_TEMPLATE,
)


def _is_prime(value: int) -> bool:
    return value > 1 and all(value % divisor for divisor in range(2, int(value**0.5) + 1))


def engram_rows() -> int:
    """Rows of the Engram table: each (n-gram size, head) hashes into its own prime, taken in ascending order
    from ``ENGRAM_BUCKETS`` without reuse; every n-gram size starts again from the bottom.
    """
    used: set[int] = set()
    for _ in range(ENGRAM_NGRAM - 1):
        candidate = ENGRAM_BUCKETS - 1
        for _ in range(ENGRAM_HEADS):
            candidate += 1
            while candidate in used or not _is_prime(candidate):
                candidate += 1
            used.add(candidate)
    return sum(used)


def config() -> dict[str, Any]:
    return {
        "architectures": ["DeepseekV41ForCausalLM"],
        "model_type": "deepseek_v41",
        "dtype": "bfloat16",
        "bos_token_id": TOKENS.token_id(TOKENS.special[0]),
        "eos_token_id": TOKENS.token_id(TOKENS.eos),
        "pad_token_id": TOKENS.token_id(TOKENS.pad),
        "vocab_size": tokenizer.VOCAB_SIZE,
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "intermediate_size": EXPERT_WIDTH,
        "moe_intermediate_size": EXPERT_WIDTH,
        "moe_layer_freq": 1,
        "first_k_dense_replace": 0,
        "num_hidden_layers": len(COMPRESS_RATIOS),
        "num_hash_layers": HASH_LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 1,
        "head_dim": HEAD_DIM,
        "qk_rope_head_dim": ROPE_DIM,
        "qk_nope_head_dim": HEAD_DIM - ROPE_DIM,
        "v_head_dim": HEAD_DIM,
        "q_lora_rank": QUERY_RANK,
        "kv_lora_rank": HEAD_DIM,
        "o_lora_rank": OUTPUT_RANK,
        "o_groups": OUTPUT_GROUPS,
        "window_size": 128,
        "sliding_window": 128,
        "n_routed_experts": EXPERTS,
        "n_shared_experts": 1,
        "num_experts_per_tok": TOP_K,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.5,
        "scoring_func": "sqrtsoftplus",
        "topk_method": "noaux_tc",
        "swiglu_limit": 10.0,
        "index_head_dim": INDEX_DIM,
        "index_n_heads": INDEX_HEADS,
        "index_topk": INDEX_TOP_K,
        "compress_ratios": list(COMPRESS_RATIOS),
        "kv_source_layer_ids": list(KV_SOURCES),
        "index_source_layer_ids": list(INDEX_SOURCES),
        "candidate_source_layer_id": -1,
        "candidate_topk_blocks": 0,
        "candidate_block_size": 0,
        "engram_layer_ids": [ENGRAM_LAYER],
        "engram_max_ngram_size": ENGRAM_NGRAM,
        "engram_vocab_size": ENGRAM_BUCKETS,
        "engram_n_heads": ENGRAM_HEADS,
        "engram_head_dim": ENGRAM_DIM,
        "engram_pad_token_id": 2,
        "engram_num_embeddings": [engram_rows()],
        "engram_compressed_vocab_size": ENGRAM_VOCABULARY,
        "hc_mult": STREAMS,
        "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-06,
        "hc_pre_from_prev_sublayer": True,
        "q_head_norm": False,
        "num_nextn_predict_layers": DRAFT_STAGES,
        "dspark_block_size": DRAFT_BLOCK,
        "dspark_noise_token_id": tokenizer.BASE_SIZE + TOKENS.all_special().index(NOISE_TOKEN),
        "dspark_target_layer_ids": list(DRAFT_TARGETS),
        "dspark_markov_rank": MARKOV_RANK,
        "dspark_n_routed_experts": DRAFT_EXPERTS,
        "dspark_num_experts_per_tok": DRAFT_TOP_K,
        "rope_theta": 10000.0,
        "compress_rope_theta": 40000.0,
        "rope_scaling": {
            "type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": CONTEXT // 4,
            "beta_fast": 32,
            "beta_slow": 1,
        },
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-06,
        "tie_word_embeddings": False,
        "vision_n_layers": 0,
    }


def norm(name: str, width: int) -> Spec:
    return Spec(name, (width,), normal(0.1, 1.0))


def hyper_connection(prefix: str) -> Iterator[Spec]:
    """mHC of both sublayers: per token, ``STREAMS`` read and write gates and a ``STREAMS x STREAMS`` mixing
    matrix.
    """
    mixes = STREAMS * (STREAMS + 2)
    for part in ("attn", "ffn"):
        yield Spec(f"{prefix}.hc_{part}_fn", (mixes, STREAMS * HIDDEN), scaled(STREAMS * HIDDEN), dtype="F32")
        yield Spec(f"{prefix}.hc_{part}_base", (mixes,), normal(0.5), dtype="F32")
        yield Spec(f"{prefix}.hc_{part}_scale", (3,), uniform(0.5, 1.0), dtype="F32")


def attention(prefix: str) -> Iterator[Spec]:
    group = HEADS * HEAD_DIM // OUTPUT_GROUPS
    yield Spec(f"{prefix}.attn_sink", (HEADS,), normal(0.5), dtype="F32")
    yield matrix(f"{prefix}.wq_a.weight", QUERY_RANK, HIDDEN)
    yield norm(f"{prefix}.q_norm.weight", QUERY_RANK)
    yield matrix(f"{prefix}.wq_b.weight", HEADS * HEAD_DIM, QUERY_RANK, gain=1.5)
    yield matrix(f"{prefix}.wkv.weight", HEAD_DIM, HIDDEN)
    yield norm(f"{prefix}.kv_norm.weight", HEAD_DIM)
    yield matrix(f"{prefix}.wo_a.weight", OUTPUT_GROUPS * OUTPUT_RANK, group, gain=1.5)
    yield matrix(f"{prefix}.wo_b.weight", HIDDEN, OUTPUT_GROUPS * OUTPUT_RANK, gain=1.5)


def compressor(prefix: str, ratio: int) -> Iterator[Spec]:
    yield norm(f"{prefix}.norm.weight", HEAD_DIM)
    yield matrix(f"{prefix}.wkv.weight", HEAD_DIM, HIDDEN)
    if ratio > 1:
        yield matrix(f"{prefix}.wgate.weight", HEAD_DIM, HIDDEN)


def indexer(prefix: str) -> Iterator[Spec]:
    yield matrix(f"{prefix}.wq_b.weight", INDEX_HEADS * INDEX_DIM, QUERY_RANK)
    yield matrix(f"{prefix}.weights_proj.weight", INDEX_HEADS, HIDDEN)
    yield matrix(f"{prefix}.wk.weight", INDEX_DIM, HEAD_DIM)
    yield norm(f"{prefix}.k_norm.weight", INDEX_DIM)


def mlp(prefix: str) -> Iterator[Spec]:
    yield matrix(f"{prefix}.w1.weight", EXPERT_WIDTH, HIDDEN, gain=1.5)
    yield matrix(f"{prefix}.w3.weight", EXPERT_WIDTH, HIDDEN, gain=1.5)
    yield matrix(f"{prefix}.w2.weight", HIDDEN, EXPERT_WIDTH, gain=1.5)


def hash_table(name: str, experts: int) -> Blob:
    """The experts of every token id, ``TOP_K`` distinct ones: a run of consecutive experts from a random
    first.
    """
    first = generator(name).choices(range(experts), k=tokenizer.VOCAB_SIZE)
    ids = [(start + step) % experts for start in first for step in range(TOP_K)]
    return Blob(name, "I32", (tokenizer.VOCAB_SIZE, TOP_K), struct.pack(f"<{len(ids)}i", *ids))


def moe(prefix: str, experts: int, by_hash: bool) -> Iterator[Spec | Blob]:
    yield matrix(f"{prefix}.gate.weight", experts, HIDDEN)
    if by_hash:
        yield hash_table(f"{prefix}.gate.tid2eid", experts)
    else:
        yield Spec(f"{prefix}.gate.bias", (experts,), normal(0.02), dtype="F32")
    for expert in range(experts):
        yield from mlp(f"{prefix}.experts.{expert}")
    yield from mlp(f"{prefix}.shared_experts")


def engram(prefix: str) -> Iterator[Spec]:
    """FP8 rows with an E8M0 scale for every 32 channels; ``wkv`` makes one key a stream and one value."""
    rows, columns = engram_rows(), (ENGRAM_NGRAM - 1) * ENGRAM_HEADS * ENGRAM_DIM
    yield Spec(f"{prefix}.embed.weight", (rows, ENGRAM_DIM), normal(16.0), dtype="F8_E4M3")
    scales = (rows, ENGRAM_DIM // ENGRAM_SCALE_GROUP)
    yield Spec(f"{prefix}.embed.scale", scales, uniform(-5, -3), dtype="F8_E8M0")
    yield Spec(f"{prefix}.q_weight", (STREAMS, HIDDEN), normal(0.3, 1.0))
    yield Spec(f"{prefix}.k_weight", (STREAMS, HIDDEN), normal(0.3, 1.0))
    yield matrix(f"{prefix}.wkv.weight", (STREAMS + 1) * HIDDEN, columns, gain=1.5)


def block(prefix: str, experts: int, by_hash: bool = False) -> Iterator[Spec | Blob]:
    yield norm(f"{prefix}.attn_norm.weight", HIDDEN)
    yield norm(f"{prefix}.ffn_norm.weight", HIDDEN)
    yield from hyper_connection(prefix)
    yield from attention(f"{prefix}.attn")
    yield from moe(f"{prefix}.ffn", experts, by_hash)


def layer(index: int) -> Iterator[Spec | Blob]:
    prefix = f"layers.{index}"
    yield from block(prefix, EXPERTS, by_hash=index < HASH_LAYERS)
    if index in KV_SOURCES:
        yield from compressor(f"{prefix}.attn.compressor", COMPRESS_RATIOS[index])
    if index in INDEX_SOURCES:
        yield from indexer(f"{prefix}.attn.indexer")
    if index == ENGRAM_LAYER:
        yield from engram(f"{prefix}.engram")


def draft() -> Iterator[Spec | Blob]:
    """DSpark: the first stage projects the target's states, the last holds the norm, Markov and confidence
    heads.
    """
    yield matrix("mtp.0.main_proj.weight", HIDDEN, len(DRAFT_TARGETS) * HIDDEN)
    yield norm("mtp.0.main_norm.weight", HIDDEN)
    for stage in range(DRAFT_STAGES):
        yield from block(f"mtp.{stage}", DRAFT_EXPERTS)
    last = f"mtp.{DRAFT_STAGES - 1}"
    yield norm(f"{last}.norm.weight", HIDDEN)
    yield Spec(f"{last}.markov_head.embed.weight", (tokenizer.VOCAB_SIZE, MARKOV_RANK), normal(1.0))
    yield matrix(f"{last}.markov_head.head.weight", tokenizer.VOCAB_SIZE, MARKOV_RANK)
    yield Spec(f"{last}.confidence_head.proj.weight", (1, HIDDEN + MARKOV_RANK), normal(0.1), dtype="F32")


def specs() -> Iterator[Spec | Blob]:
    yield Spec("embed.weight", (tokenizer.VOCAB_SIZE, HIDDEN), normal(1.0))
    for index in range(len(COMPRESS_RATIOS)):
        yield from layer(index)
    yield norm("norm.weight", HIDDEN)
    yield matrix("head.weight", tokenizer.VOCAB_SIZE, HIDDEN, gain=3.0)
    yield from draft()
