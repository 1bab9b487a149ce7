# SPDX-License-Identifier: Apache-2.0
"""Checkpoint folders without weights: production shapes and what a checkpoint of that format says of itself.

``presets/configs`` holds the published text configuration. What a released checkpoint has beside it and what
only Transformers or SGLang's classes ask for (vision tower, token ids) is added here, at any size.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CONFIGS = Path(__file__).parents[4] / "python" / "sglang_fork" / "presets" / "configs"

NVFP4_MODELOPT = {
    "quant_method": "modelopt",
    "quant_algo": "NVFP4",
    "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 4, "type": "float", "group_size": 16, "dynamic": False},
            "input_activations": {"num_bits": 4, "type": "float", "group_size": 16, "dynamic": False},
        }
    },
    "ignore": ["lm_head", "*self_attn*", "*linear_attn*", "mtp*"],
    "producer": {"name": "modelopt", "version": "0.40.0"},
}
NVFP4_COMPRESSED = {
    "quant_method": "compressed-tensors",
    "format": "nvfp4-pack-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "format": "nvfp4-pack-quantized",
            "weights": {"num_bits": 4, "type": "float", "strategy": "tensor_group",
                        "group_size": 16, "symmetric": True, "dynamic": False},
            "input_activations": {"num_bits": 4, "type": "float", "strategy": "tensor_group",
                                  "group_size": 16, "symmetric": True, "dynamic": "local"},
        }
    },
    "ignore": ["lm_head", "re:.*linear_attn.*"],
}  # fmt: skip
FP8_BLOCK = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}

VISION = {
    "qwen3_5_moe": {
        "image_token_id": 248056,
        "video_token_id": 248057,
        "vision_start_token_id": 248053,
        "vision_end_token_id": 248054,
        "vision_config": {
            "model_type": "qwen3_5_moe", "depth": 2, "hidden_size": 32, "intermediate_size": 64,
            "num_heads": 2, "in_channels": 3, "patch_size": 16, "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "num_position_embeddings": 64, "deepstack_visual_indexes": [], "hidden_act": "gelu_pytorch_tanh",
        },
    },
    "kimi_k3": {
        "media_placeholder_token_id": 163605,
        "vision_config": {
            "model_type": "kimi_k3_vision", "patch_size": 14, "init_pos_emb_height": 8,
            "init_pos_emb_width": 8, "vt_num_attention_heads": 2, "vt_num_hidden_layers": 2,
            "vt_hidden_size": 32, "vt_intermediate_size": 64, "qkv_hidden_size": 48,
        },
    },
}  # fmt: skip

# A short hybrid stack: of Nemotron-3-Super only the published facts are known (512 experts, latent MoE).
NEMOTRON = {
    "architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", "vocab_size": 131072,
    "hidden_size": 4096, "num_hidden_layers": 8, "hybrid_override_pattern": "MEME*MEM",
    "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128, "intermediate_size": 5376,
    "mlp_hidden_act": "relu2", "mamba_num_heads": 128, "mamba_head_dim": 64, "ssm_state_size": 128,
    "n_groups": 8, "conv_kernel": 4, "chunk_size": 128, "n_routed_experts": 512, "num_experts_per_tok": 22,
    "moe_intermediate_size": 2688, "moe_shared_expert_intermediate_size": 5376, "n_shared_experts": 1,
    "moe_latent_size": 1024, "routed_scaling_factor": 5.0, "norm_topk_prob": True, "n_group": 1,
    "topk_group": 1, "num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*E",
    "max_position_embeddings": 262144,
    "layer_norm_epsilon": 1e-05, "use_bias": False, "use_conv_bias": True, "tie_word_embeddings": False,
}  # fmt: skip


def production(name: str, quantization: str = "") -> dict[str, Any]:
    """The configuration of a released checkpoint; ``quantization`` is the format that it is stored in."""
    config = dict(json.loads((CONFIGS / f"{name}.json").read_text()))
    kind = config["model_type"]
    if kind == "nemotron_h":
        config = dict(NEMOTRON)
    elif kind == "kimi_k3":
        text = {**config["text_config"], "model_type": "kimi_linear", "head_dim": 128, "rope_theta": 10000.0}
        text.pop("experts_format")
        config["text_config"] = text
        config["vision_config"] = {**VISION[kind]["vision_config"], "text_hidden_size": text["hidden_size"]}
    elif kind == "deepseek_v41":
        config = {**config, **config.pop("text_config"), **_v41_extra()}
    elif kind == "mistral4":
        config = _mistral_native(config)
    elif kind == "glm_moe_dsa":
        config |= {"moe_layer_freq": 1, "ep_size": 1, "max_position_embeddings": 202752}
    if kind in VISION:
        config = {**VISION[kind], **config}
    if kind == "qwen3_5_moe":
        config["vision_config"] = {
            **config["vision_config"],
            "out_hidden_size": config["text_config"]["hidden_size"],
        }
    if quantization:
        config["quantization_config"] = {
            "modelopt": NVFP4_MODELOPT,
            "compressed-tensors": NVFP4_COMPRESSED,
            "fp8": FP8_BLOCK,
            "mxfp4": {"quant_method": "mxfp4"},
        }[quantization]
    config.setdefault("dtype", "bfloat16")
    return config


def _mistral_native(config: dict[str, Any]) -> dict[str, Any]:
    """params.json, the format of Mistral's own releases, which SGLang picks by the model's name."""
    kept = ("vocab_size", "q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim",
            "max_position_embeddings")  # fmt: skip
    return {
        **{name: config[name] for name in kept},
        "dim": config["hidden_size"], "n_layers": config["num_hidden_layers"],
        "norm_eps": config["rms_norm_eps"], "n_heads": config["num_attention_heads"],
        "n_kv_heads": config["num_key_value_heads"],
        "hidden_dim": config["intermediate_size"], "head_dim": 128, "rope_theta": 10000.0,
        "moe": {"num_experts": config["n_routed_experts"], "num_shared_experts": 1,
                "num_experts_per_tok": config["num_experts_per_tok"],
                "expert_hidden_dim": config["moe_intermediate_size"],
                "first_k_dense_replace": 0, "route_every_n": 1, "routed_scale": 1.0, "num_expert_groups": 1,
                "num_expert_groups_per_tok": 1},
        "llama_4_scaling": {"beta": 0.1, "original_max_position_embeddings": 8192},
    }  # fmt: skip


def _v41_extra() -> dict[str, Any]:
    return {
        "first_k_dense_replace": 0, "moe_layer_freq": 1, "num_hash_layers": 0, "qk_nope_head_dim": 448,
        "v_head_dim": 512, "kv_lora_rank": 512, "window_size": 128, "n_group": 1, "topk_group": 1,
        "intermediate_size": 2304, "hc_pre_from_prev_sublayer": True, "q_head_norm": False,
        "vision_n_layers": 0, "tie_word_embeddings": False,
    }  # fmt: skip


def write(folder: Path, name: str, quantization: str = "") -> Path:
    """Write the folder's config.json or params.json (and ModelOpt's own file where the format has one)."""
    folder.mkdir(parents=True, exist_ok=True)
    config = production(name, quantization)
    native = "llama_4_scaling" in config
    (folder / ("params.json" if native else "config.json")).write_text(json.dumps(config))
    if quantization == "modelopt":
        own = {"producer": NVFP4_MODELOPT["producer"], "quantization": {
            "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16,
            "exclude_modules": NVFP4_MODELOPT["ignore"]}}  # fmt: skip
        (folder / "hf_quant_config.json").write_text(json.dumps(own))
    return folder
