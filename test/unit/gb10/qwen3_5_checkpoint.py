# SPDX-License-Identifier: Apache-2.0
"""Synthetic Qwen3.5-MoE checkpoints in one NVFP4 form and three BF16 forms that say what it should compute.

    nvfp4      experts in NVFP4 (compressed-tensors), everything else BF16, as the published ones
    exact      BF16: the experts dequantised, everything else the same: what Marlin must match
    gdn        exact, with GatedDeltaNet's projections through NVFP4 and back
    all        gdn, with attention, shared expert and head through per-channel FP8 and back

Names and distributions are the tiny checkpoint's; sizes are the caller's. Every dequantised NVFP4 value is
exact in BF16 (six significant bits).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import configs
import torch
from safetensors.torch import save_file

from sglang.srt.layers.quantization import fp8_post_quant, nvfp4_numerics
from sglang_fork.checkpoints import qwen3_5, tokenizer

FORMS = ("nvfp4", "exact", "gdn", "all")
QUANTIZATION = configs.NVFP4_COMPRESSED | {
    "ignore": ["lm_head", "re:.*linear_attn.*", "re:.*self_attn.*", "re:.*qkv_proj$", "re:.*o_proj$",
               "re:.*shared_expert.*", "re:.*mlp.gate$", "re:.*mtp.*"],
}  # fmt: skip
# One GPU's shapes of Qwen3.5-35B-A3B, with fewer experts, layers and tokens.
REAL = {
    "HIDDEN": 2048, "HEADS": 16, "KV_HEADS": 2, "GDN_KEY_HEADS": 16, "GDN_VALUE_HEADS": 32, "EXPERTS": 16,
    "TOP_K": 8, "EXPERT_WIDTH": 512, "SHARED_WIDTH": 512,
}  # fmt: skip

Tensors = dict[str, torch.Tensor]


def base(sizes: Mapping[str, int], vocabulary: int, device: str, seed: int) -> tuple[dict[str, Any], Tensors]:
    """The configuration and random BF16 tensors of a Qwen3.5 of these sizes."""
    former = {name: getattr(qwen3_5, name) for name in sizes}, tokenizer.VOCAB_SIZE
    try:
        for name, value in sizes.items():
            setattr(qwen3_5, name, value)
        tokenizer.VOCAB_SIZE = vocabulary
        config, specs = qwen3_5.config(), list(qwen3_5.specs())
    finally:
        for name, value in former[0].items():
            setattr(qwen3_5, name, value)
        tokenizer.VOCAB_SIZE = former[1]
    generator = torch.Generator(device=device).manual_seed(seed)
    tensors = {}
    for spec in specs:
        levels = torch.tensor([spec.quantile((i + 0.5) / 256) for i in range(256)], device=device)
        choice = torch.randint(0, 256, spec.shape, generator=generator, device=device, dtype=torch.uint8)
        tensors[spec.name] = levels.bfloat16()[choice.int()]
    return config, tensors


def through_nvfp4(weight: torch.Tensor) -> torch.Tensor:
    return nvfp4_numerics.dequantize(*nvfp4_numerics.quantize(weight)).bfloat16()


def through_fp8(weight: torch.Tensor) -> torch.Tensor:
    codes, scales, _ = fp8_post_quant.quantize_channels(weight)
    return (codes.float() * scales).bfloat16()


def fused(tensors: Tensors, names: list[str], change: Any) -> None:
    """Change tensors as one, the way SGLang holds them."""
    rows = [tensors[name].shape[0] for name in names]
    changed = change(torch.cat([tensors[name] for name in names]))
    tensors.update(zip(names, changed.split(rows), strict=True))


def experts(tensors: Tensors, prefix: str) -> tuple[Tensors, Tensors]:
    """One layer's experts as NVFP4 tensors of their own, and dequantised under the fused names."""
    stored: Tensors = {}
    exact: Tensors = {}
    for name, parts in (("gate_up_proj", ("gate_proj", "up_proj")), ("down_proj", ("down_proj",))):
        weights = tensors[f"{prefix}.{name}"]
        back = []
        for expert, weight in enumerate(weights):
            packed, scale, multiplier = nvfp4_numerics.quantize(weight)
            back.append(nvfp4_numerics.dequantize(packed, scale, multiplier).bfloat16())
            rows = weight.shape[0] // len(parts)
            for index, part in enumerate(parts):
                at, cut = f"{prefix}.{expert}.{part}", slice(index * rows, (index + 1) * rows)
                stored[f"{at}.weight_packed"] = packed[cut].contiguous()
                stored[f"{at}.weight_scale"] = scale[cut].contiguous()
                stored[f"{at}.weight_global_scale"] = (1.0 / multiplier).reshape(1)
                stored[f"{at}.input_global_scale"] = torch.ones(1, device=weight.device)
        exact[f"{prefix}.{name}"] = torch.stack(back)
    return stored, exact


def write(folder: Path, config: dict[str, Any], tensors: Tensors) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: t.contiguous().cpu() for name, t in tensors.items()}, folder / "model.safetensors")


def make(
    folder: Path, sizes: Mapping[str, int] = REAL, vocabulary: int = 32768, device: str = "cpu", seed: int = 0
) -> dict[str, Tensors]:
    """Write every form below ``folder``; returns their tensors."""
    config, tensors = base(sizes, vocabulary, device, seed)
    layers = [f"model.layers.{i}" for i in range(config["num_hidden_layers"])]
    stored = dict(tensors)
    exact = dict(tensors)
    for layer in layers:
        prefix = f"{layer}.mlp.experts"
        four, back = experts(tensors, prefix)
        for name in back:
            del stored[name]
        stored |= four
        exact |= back
    gdn = dict(exact)
    for layer, kind in zip(layers, config["layer_types"], strict=True):
        if kind == "linear_attention":
            at = f"{layer}.linear_attn"
            fused(gdn, [f"{at}.in_proj_qkv.weight", f"{at}.in_proj_z.weight"], through_nvfp4)
            fused(gdn, [f"{at}.out_proj.weight"], through_nvfp4)
    everything = dict(gdn)
    for name in gdn:
        if name.startswith("mtp."):
            continue
        block = ".self_attn." in name or ".shared_expert." in name
        if name == "lm_head.weight" or (block and name.endswith("_proj.weight")):
            everything[name] = through_fp8(gdn[name])
    made = {"nvfp4": stored, "exact": exact, "gdn": gdn, "all": everything}
    for form, content in made.items():
        extra = {"quantization_config": QUANTIZATION} if form == "nvfp4" else {}
        write(folder / form, config | extra, content)
    return made
