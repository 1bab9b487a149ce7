# SPDX-License-Identifier: Apache-2.0
"""Two-layer NVFP4 checkpoints of Nemotron-H and Mistral-Small-4, loaded as on a GB10 and held to themselves.

SGLang's CUDA classes for compute capability 12.1, its loader, its quantization methods and its Marlin layout
run on a CPU; the four Marlin kernels are twins. The reference reads the checkpoint's tensors by their
published names and dequantises them itself. ``loads.py`` runs ``loaded`` in a process of its own.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import configs
import fake_gpu
import marlin_twin
import pytest
import torch
from safetensors.torch import save_file

HIDDEN, EXPERTS, TOP_K, INTERMEDIATE, SHARED, HEADS = 256, 8, 2, 128, 256, 4
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])

NEMOTRON = {
    "architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", "vocab_size": 256,
    "hidden_size": HIDDEN, "num_hidden_layers": 2, "hybrid_override_pattern": "*E",
    "num_attention_heads": HEADS, "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": SHARED,
    "mlp_hidden_act": "relu2", "mamba_num_heads": 8, "mamba_head_dim": 64, "ssm_state_size": 64,
    "n_groups": 1,
    "conv_kernel": 4, "chunk_size": 128, "n_routed_experts": EXPERTS, "num_experts_per_tok": TOP_K,
    "moe_intermediate_size": INTERMEDIATE, "moe_shared_expert_intermediate_size": SHARED,
    "n_shared_experts": 1, "routed_scaling_factor": 2.5, "norm_topk_prob": True,
    "n_group": 1, "topk_group": 1, "max_position_embeddings": 1024, "layer_norm_epsilon": 1e-05,
    "use_bias": False, "use_conv_bias": True,
    "tie_word_embeddings": False, "dtype": "bfloat16",
}  # fmt: skip
MISTRAL = {
    "vocab_size": 256, "q_lora_rank": 128, "kv_lora_rank": 128, "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 64, "v_head_dim": 128, "max_position_embeddings": 1024, "dim": HIDDEN,
    "n_layers": 2, "norm_eps": 1e-06,
    "n_heads": HEADS, "n_kv_heads": HEADS, "hidden_dim": SHARED, "head_dim": 128, "rope_theta": 10000.0,
    "moe": {"num_experts": EXPERTS, "num_shared_experts": 1, "num_experts_per_tok": TOP_K,
            "expert_hidden_dim": INTERMEDIATE, "first_k_dense_replace": 0, "route_every_n": 1,
            "routed_scale": 1.0, "num_expert_groups": 1, "num_expert_groups_per_tok": 1},
    "llama_4_scaling": {"beta": 0.1, "original_max_position_embeddings": 8192},
}  # fmt: skip

generator = torch.Generator().manual_seed(0)


class Checkpoint:
    """Tensors by their published names, and the matrix that each NVFP4 one stands for."""

    def __init__(self, compressed: bool):
        self.compressed = compressed
        self.tensors: dict[str, torch.Tensor] = {}
        self.matrices: dict[str, torch.Tensor] = {}

    def plain(self, name: str, *shape: int, dtype: torch.dtype = torch.bfloat16) -> None:
        self.tensors[name] = (torch.randn(shape, generator=generator) * 0.02).to(dtype)

    def quantized(self, name: str, rows: int, columns: int, global_scale: float = 2.0**-10) -> None:
        codes = torch.randint(0, 16, (rows, columns), generator=generator)
        # from E4M3's smallest subnormal to 448
        scale_codes = torch.randint(1, 0x7F, (rows, columns // 16), generator=generator).to(torch.uint8)
        scale = scale_codes.view(torch.float8_e4m3fn)
        packed = (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8)
        self.matrices[name] = E2M1[codes] * scale.float().repeat_interleave(16, dim=1) * global_scale
        if self.compressed:  # global scales are stored as divisors
            stored = {"weight_packed": packed, "weight_scale": scale}
            stored |= {"weight_global_scale": torch.tensor([1 / global_scale])}
            stored |= {"input_global_scale": torch.tensor([1.0])}
        else:
            stored = {"weight": packed, "weight_scale": scale, "weight_scale_2": torch.tensor(global_scale)}
            stored |= {"input_scale": torch.tensor(1.0)}
        self.tensors |= {f"{name}.{suffix}": tensor for suffix, tensor in stored.items()}


def nemotron(folder: Path) -> Checkpoint:
    checkpoint = Checkpoint(compressed=False)
    checkpoint.plain("backbone.embeddings.weight", 256, HIDDEN)
    checkpoint.plain("backbone.norm_f.weight", HIDDEN)
    checkpoint.plain("lm_head.weight", 256, HIDDEN)
    for layer in range(2):
        checkpoint.plain(f"backbone.layers.{layer}.norm.weight", HIDDEN)
    for name, rows in (("q_proj", HEADS * 64), ("k_proj", 128), ("v_proj", 128)):
        checkpoint.quantized(f"backbone.layers.0.mixer.{name}", rows, HIDDEN)
    checkpoint.quantized("backbone.layers.0.mixer.o_proj", HIDDEN, HEADS * 64)
    mixer = "backbone.layers.1.mixer"
    checkpoint.plain(f"{mixer}.gate.weight", EXPERTS, HIDDEN)
    checkpoint.plain(f"{mixer}.gate.e_score_correction_bias", EXPERTS, dtype=torch.float32)
    checkpoint.quantized(f"{mixer}.shared_experts.up_proj", SHARED, HIDDEN)
    checkpoint.quantized(f"{mixer}.shared_experts.down_proj", HIDDEN, SHARED)
    for expert in range(EXPERTS):
        scale = 2.0 ** -(8 + expert % 3)
        checkpoint.quantized(f"{mixer}.experts.{expert}.up_proj", INTERMEDIATE, HIDDEN, scale)
        checkpoint.quantized(f"{mixer}.experts.{expert}.down_proj", HIDDEN, INTERMEDIATE, scale)
    groups = {
        "group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "float", "group_size": 16}}
    }
    quantization = {
        "quant_method": "modelopt",
        "quant_algo": "NVFP4",
        "config_groups": groups,
        "ignore": ["lm_head"],
    }
    quantization |= {"producer": {"name": "modelopt", "version": "0.40.0"}}
    (folder / "config.json").write_text(json.dumps(NEMOTRON | {"quantization_config": quantization}))
    own = {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"]}
    (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": own}))
    save_file(checkpoint.tensors, folder / "model.safetensors")
    return checkpoint


def mistral(folder: Path) -> Checkpoint:
    checkpoint = Checkpoint(compressed=True)
    checkpoint.plain("tok_embeddings.weight", 256, HIDDEN)
    checkpoint.plain("norm.weight", HIDDEN)
    checkpoint.plain("output.weight", 256, HIDDEN)
    for layer in range(2):
        at = f"layers.{layer}"
        for name, *shape in (
            ("attention_norm", HIDDEN), ("ffn_norm", HIDDEN), ("attention.q_a_norm", 128),
            ("attention.kv_a_norm", 128),
            ("attention.wq_a", 128, HIDDEN), ("attention.wq_b", HEADS * 128, 128), ("gate", EXPERTS, HIDDEN),
            ("attention.wkv_a_with_mqa", 192, HIDDEN), ("attention.wkv_b", HEADS * 192, 128),
        ):  # fmt: skip
            checkpoint.plain(f"{at}.{name}.weight", *shape)
        checkpoint.quantized(f"{at}.attention.wo", HIDDEN, HEADS * 128)
        for block in ["shared_experts", *(f"experts.{e}" for e in range(EXPERTS))]:
            for name in ("w1", "w3"):
                checkpoint.quantized(f"{at}.{block}.{name}", INTERMEDIATE, HIDDEN)
            checkpoint.quantized(f"{at}.{block}.w2", HIDDEN, INTERMEDIATE)
    quantization = configs.NVFP4_COMPRESSED | {"ignore": ["lm_head", "re:.*self_attn.(q|kv).*"]}
    (folder / "params.json").write_text(json.dumps(MISTRAL | {"quantization_config": quantization}))
    save_file(checkpoint.tensors, folder / "consolidated.safetensors")
    return checkpoint


def build(folder: Path, draft: bool = False) -> Any:
    """The model (or its draft) as a GB10 would hold it; parameters on the CPU."""
    from build_on_meta import _call

    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.distributed import parallel_state
    from sglang.srt.layers.dp_attention import initialize_dp_attention
    from sglang.srt.layers.moe import initialize_moe_config
    from sglang.srt.layers.quantization.fp4_utils import initialize_fp4_gemm_config
    from sglang.srt.model_loader.loader import _get_quantization_config, _initialize_model
    from sglang.srt.runtime_context import SpawnRanks, publish, reset_context
    from sglang.srt.server_args import ServerArgs

    server_args = ServerArgs(
        model_path=str(folder), device="cuda", disable_radix_cache=True, mem_fraction_static=0.5
    )
    if not torch.distributed.is_initialized():
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
        reset_context()
        publish(server_args, role="test", ranks=SpawnRanks(world_rank=0))
        with fake_gpu.Redirect("cpu"):
            parallel_state.init_distributed_environment(world_size=1, rank=0, local_rank=0, backend="gloo")
            parallel_state.initialize_model_parallel(backend="gloo")
    with fake_gpu.Redirect("cpu"):
        model_config = ModelConfig.from_server_args(server_args, is_draft_model=draft)
        _call(initialize_dp_attention, server_args, model_config)
        _call(initialize_moe_config, server_args)
        initialize_fp4_gemm_config()
        torch.set_default_dtype(torch.bfloat16)
        load_config = LoadConfig()
        quant_config = _get_quantization_config(model_config, load_config)
        return _initialize_model(model_config, load_config, quant_config)


def load(model: Any, tensors: dict[str, torch.Tensor]) -> None:
    """A checkpoint through SGLang's own loader: weights, processing, self-test, post-quantization."""
    from sglang.srt.model_loader.loader import DefaultModelLoader

    with fake_gpu.Redirect("cpu"):
        DefaultModelLoader.load_weights_and_postprocess(model, iter(tensors.items()), torch.device("cpu"))


def relative(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.float() - want).norm() / want.norm())


def dense_error(layer: Any, parts: list[torch.Tensor]) -> float:
    matrix = torch.cat(parts)
    x = torch.randn(5, matrix.shape[1], generator=generator).bfloat16()
    return relative(layer.quant_method.apply(layer, x), x.float() @ matrix.T)


def moe_error(layer: Any, w13: list[torch.Tensor], w2: list[torch.Tensor]) -> float:
    from sglang.srt.layers.moe import marlin_activation
    from sglang.srt.layers.moe.token_dispatcher.standard import StandardDispatchOutput
    from sglang.srt.layers.moe.topk import StandardTopKOutput

    x = torch.randn(6, w13[0].shape[1], generator=generator).bfloat16()
    logits = torch.randn(6, len(w13), generator=generator)
    weights, ids = torch.softmax(logits, -1).topk(TOP_K)
    topk = StandardTopKOutput(weights, ids.to(torch.int32), logits)
    got = layer.quant_method.apply(layer, StandardDispatchOutput(x, None, topk)).hidden_states
    want = torch.zeros(6, HIDDEN)
    config = layer.moe_runner_config
    for token in range(6):
        for weight, expert in zip(weights[token], ids[token].tolist(), strict=True):
            hidden = marlin_activation.reference(config, (x[token].float() @ w13[expert].T)[None])[0]
            want[token] += weight * (hidden @ w2[expert].T)
    return relative(got, want * (config.routed_scaling_factor or 1.0))


def compare(model: Any, matrices: dict[str, torch.Tensor], family: str) -> dict[str, float]:
    errors = {}
    at = dict(model.named_modules())
    if family == "nemotron_h":
        attention, mixer = "backbone.layers.0.mixer", "backbone.layers.1.mixer"
        first, second = at["model.layers.0.mixer"], at["model.layers.1.mixer"]
        errors["qkv_proj"] = dense_error(first.qkv_proj, [matrices[f"{attention}.{n}_proj"] for n in "qkv"])
        errors["o_proj"] = dense_error(first.o_proj, [matrices[f"{attention}.o_proj"]])
        for name in ("up_proj", "down_proj"):
            layer = getattr(second.shared_experts, name)
            errors[f"shared {name}"] = dense_error(layer, [matrices[f"{mixer}.shared_experts.{name}"]])
        up, down = (
            [matrices[f"{mixer}.experts.{e}.{n}_proj"] for e in range(EXPERTS)] for n in ("up", "down")
        )
        errors["experts"] = moe_error(second.experts, up, down)
        return errors
    for i in range(2):
        layer, prefix = at[f"model.layers.{i}"], f"layers.{i}"
        errors[f"{i} o_proj"] = dense_error(layer.self_attn.o_proj, [matrices[f"{prefix}.attention.wo"]])
        gate_up, down = (
            [matrices[f"{prefix}.shared_experts.{n}"] for n in names] for names in (("w1", "w3"), ("w2",))
        )
        shared = layer.mlp.shared_experts
        errors[f"{i} shared gate_up"] = dense_error(shared.gate_up_proj, gate_up)
        errors[f"{i} shared down"] = dense_error(shared.down_proj, down)
        w13 = [
            torch.cat([matrices[f"{prefix}.experts.{e}.{n}"] for n in ("w1", "w3")]) for e in range(EXPERTS)
        ]
        w2 = [matrices[f"{prefix}.experts.{e}.w2"] for e in range(EXPERTS)]
        errors[f"{i} experts"] = moe_error(layer.mlp.experts, w13, w2)
    return errors


def loaded(folder: Path, family: str) -> dict[str, Any]:
    """The class that a family's checkpoint became, how many signatures were self-tested, errors by layer."""
    checkpoint = {"nemotron_h": nemotron, "mistral_small_4": mistral}[family](folder)
    with torch.no_grad(), marlin_twin.installed(pytest.MonkeyPatch()):
        model = build(folder)
        from sglang.srt.layers.quantization import nvfp4_self_test

        load(model, checkpoint.tensors)
        return {
            "class": type(model).__name__,
            "self_tested": len(nvfp4_self_test._passed),
            "errors": compare(model, checkpoint.matrices, family),
        }
