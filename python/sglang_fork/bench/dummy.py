# SPDX-License-Identifier: Apache-2.0
"""A model folder of production shapes without weights: a configuration, and a tokenizer in which every id of
the vocabulary is a word, so that a streaming client sees each token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

# What Transformers and SGLang ask of a text configuration that the published one leaves out.
TEXT = {"dtype": "bfloat16", "bos_token_id": 0, "eos_token_id": 1, "hidden_act": "silu"}
ARCHITECTURES = {"qwen3_5_moe_text": "Qwen3_5MoeForCausalLM", "glm_moe_dsa": "GlmMoeDsaForCausalLM"}


def write_folder(folder: Path, published: dict[str, Any]) -> Path:
    """Write ``config.json`` and a tokenizer of the same vocabulary into ``folder``."""
    text = {k: v for k, v in published.get("text_config", published).items() if not k.startswith("_")}
    config = {**TEXT, **text}
    if (known := ARCHITECTURES.get(config.get("model_type", ""))) is not None:
        config["architectures"] = [known]
    interval = config.get("full_attention_interval")
    if interval and "layer_types" not in config:
        kinds = ["linear_attention"] * (interval - 1) + ["full_attention"]
        config["layer_types"] = kinds * (config["num_hidden_layers"] // interval)
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(config["vocab_size"])), encoding="utf-8")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "t0", "eos_token": "t1"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    # A weights file of no tensor: the launcher looks for one, the dummy loader reads none.
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    return folder


def tokenizer(size: int) -> dict[str, Any]:
    """A ``tokenizer.json`` whose words are ``t0`` to ``t<size - 1>``, split at spaces."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {f"t{i}": i for i in range(size)}, "unk_token": "t2"},
    }
