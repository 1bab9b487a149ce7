# SPDX-License-Identifier: Apache-2.0
"""One rank of DeepSeek-V4.1: two window-only layers, then layers that keep every second token, then layers
that keep every token; mHC streams, Engram tables, MXFP4 experts beside FP8 in blocks of 32 x 32.

Layers refer to others (whose keys and selection they read), so a shorter slice keeps whole groups and renames
the references. The Engram tables are far smaller than at production: a step gathers a few rows of them, and
the bytes gathered do not depend on the table's size.
"""

from __future__ import annotations

from typing import Any

from sglang_fork.bench.shapes import Slice, bytes_per_weight, share
from sglang_fork.errors import ForkError

WINDOW_LAYERS = 2
# Layers that share one source of keys, in the part that keeps every second token.
HALF_GROUP = 6
# Layers that share one selection, in the part that keeps every token.
FULL_GROUP = 4
ENGRAM_BUCKETS = 250_000
BLOCK = 32
FP8 = 1 + 1 / BLOCK**2


def kept_layers(production: dict[str, Any], layers: int) -> list[int]:
    """Which production layers a slice of ``layers`` has: the window layers, whole half-groups in production's
    proportion, the rest from the part that keeps every token."""
    total, ratios = production["num_hidden_layers"], production["compress_ratios"]
    if layers == total:
        return list(range(total))
    half = sum(1 for ratio in ratios if ratio == 2)
    groups = max(1, round((layers - WINDOW_LAYERS) * half / (total - WINDOW_LAYERS) / HALF_GROUP))
    first_full = WINDOW_LAYERS + half
    rest = layers - WINDOW_LAYERS - groups * HALF_GROUP
    if not FULL_GROUP <= rest <= total - first_full:
        raise ForkError(
            f"a DeepSeek-V4.1 slice cannot have {layers} layers", f"take {total} or 12 to {total - 4}"
        )
    return [*range(WINDOW_LAYERS + groups * HALF_GROUP), *range(first_full, first_full + rest)]


def is_prime(value: int) -> bool:
    return value > 1 and all(value % divisor for divisor in range(2, int(value**0.5) + 1))


def engram_rows(layers: int, ngram: int, heads: int, buckets: int) -> list[int]:
    """Rows of each Engram table, as SGLang derives them: ascending primes from ``buckets`` on, one for each
    (n-gram size, head), none used twice; each n-gram size starts again from the bottom."""
    used: set[int] = set()
    rows = []
    for _ in range(layers):
        total = 0
        for _ in range(ngram - 1):
            candidate = buckets - 1
            for _ in range(heads):
                candidate += 1
                while candidate in used or not is_prime(candidate):
                    candidate += 1
                used.add(candidate)
                total += candidate
        rows.append(total)
    return rows


def build(production: dict[str, Any], tp: int, layers: int, weights: str) -> Slice:
    """The rank's share of heads, output groups, expert width and vocabulary; keys, indexers and Engram
    projections are whole on every rank."""
    if weights != "mxfp4":
        raise ForkError(f"a DeepSeek-V4.1 slice has mxfp4 experts, not {weights}", "--weights mxfp4")
    kept = kept_layers(production, layers)
    place = {layer: index for index, layer in enumerate(kept)}

    def renamed(name: str) -> list[int]:
        return [place[i] for i in production[name] if i in place]

    hidden, head_dim = production["hidden_size"], production["head_dim"]
    heads = share(production["num_attention_heads"], tp, "attention heads")
    groups = share(production["o_groups"], tp, "output groups")
    width = share(production["moe_intermediate_size"], tp, "expert width")
    vocab = share(production["vocab_size"], tp, "vocabulary")
    engrams = renamed("engram_layer_ids")
    ngram, table_heads, table_dim = (
        production[f"engram_{k}"] for k in ("max_ngram_size", "n_heads", "head_dim")
    )
    config: dict[str, Any] = {
        **{k: v for k, v in production.items() if not k.startswith("_")},
        "architectures": ["DeepseekV41ForCausalLM"],
        "model_type": "deepseek_v41",
        "dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "o_groups": groups,
        "moe_intermediate_size": width,
        "intermediate_size": width,
        "vocab_size": vocab,
        "compress_ratios": [production["compress_ratios"][i] for i in kept],
        "kv_source_layer_ids": renamed("kv_source_layer_ids"),
        "index_source_layer_ids": renamed("index_source_layer_ids"),
        "candidate_source_layer_id": place[production["candidate_source_layer_id"]],
        "engram_layer_ids": engrams,
        "engram_vocab_size": ENGRAM_BUCKETS,
        "engram_num_embeddings": engram_rows(len(engrams), ngram, table_heads, ENGRAM_BUCKETS),
        "engram_pad_token_id": 2,
        "dspark_noise_token_id": 3,
        "dspark_target_layer_ids": list(range(layers - 3, layers)),
        "first_k_dense_replace": 0,
        "moe_layer_freq": 1,
        "num_hash_layers": 0,
        "qk_nope_head_dim": head_dim - production["qk_rope_head_dim"],
        "v_head_dim": head_dim,
        "kv_lora_rank": head_dim,
        "window_size": production["sliding_window"],
        "n_group": 1,
        "topk_group": 1,
        "hc_pre_from_prev_sublayer": True,
        "q_head_norm": False,
        "vision_n_layers": 0,
        "tie_word_embeddings": False,
        "quantization_config": {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "weight_block_size": [BLOCK, BLOCK],
            "scale_fmt": "ue8m0",
            "expert_dtype": "fp4",
        },
    }
    q_lora, o_lora = production["q_lora_rank"], production["o_lora_rank"]
    fp8 = hidden * (q_lora + head_dim) + q_lora * heads * head_dim + hidden * groups * o_lora
    fp8 += 3 * hidden * width * production["n_shared_experts"]
    out_in = production["num_attention_heads"] * head_dim // production["o_groups"]
    streams = production["hc_mult"]
    mix = 2 * 4 * (2 * streams + streams * streams) * streams * hidden
    experts = production["n_routed_experts"]
    every = FP8 * fp8 + 2 * (groups * o_lora * out_in + experts * hidden) + mix
    index_heads, index_dim = production["index_n_heads"], production["index_head_dim"]
    index = FP8 * q_lora * index_heads * index_dim + 2 * hidden * index_heads
    sources = config["kv_source_layer_ids"]
    compress = sum(
        2 * (head_dim * hidden * (2 if config["compress_ratios"][i] == 2 else 1) + index_dim * head_dim)
        for i in sources
    )
    engram = FP8 * (streams + 1) * hidden * (ngram - 1) * table_heads * table_dim
    return Slice(
        family="deepseek_v41",
        name=f"tp{tp}",
        layers=layers,
        weights=weights,
        config=config,
        experts=experts,
        top_k=production["num_experts_per_tok"],
        moe_layers=layers,
        expert_bytes=round(3 * hidden * width * bytes_per_weight(weights)),
        dense_bytes=round(
            layers * every + len(config["index_source_layer_ids"]) * index + compress + len(engrams) * engram
        ),
        head_bytes=2 * hidden * vocab,
    )
