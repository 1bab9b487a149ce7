# SPDX-License-Identifier: Apache-2.0
"""The trained Qwen3.5's ModelOpt copy, MTP layer included, through SGLang's own quantization and loader.

What the quantiser wrote is held against every parameter that SGLang has after loading, codes and scales, and
again after its processing for a GB10: FP8 weights dequantised, experts multiplied by Marlin's twin.
``loads.py`` runs ``loaded`` in a process of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import load_nvfp4 as common
import marlin_twin
import pytest
import torch
from safetensors.torch import load_file

from sglang_fork.checkpoints.train import quantise
from sglang_fork.paths import ROOT

TRAINED = ROOT / "test" / "checkpoints"
FUSED = {
    "in_proj_qkvz": ("in_proj_qkv", "in_proj_z"),
    "in_proj_ba": ("in_proj_b", "in_proj_a"),
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
SLOTS = {"in_proj_qkv": 3}  # SGLang keeps a scale for each of its q, k and v
ATTENTION = ("qkv_proj", "o_proj", "q_norm", "k_norm")  # without self_attn in SGLang's names
EXPERTS = {"w13": "gate_up_proj", "w2": "down_proj"}
GRID = torch.tensor([*quantise.E2M1, *(-value for value in quantise.E2M1)])

Tensors = dict[str, torch.Tensor]


def published(parameter: str, draft: bool) -> tuple[str, str]:
    """A parameter's layer by its name in checkpoints, and the rest."""
    layer, _, leaf = parameter.rpartition(".")
    block, _, name = layer.rpartition(".")
    if name in ATTENTION:
        layer = f"{block}.self_attn.{name}"
    if draft and layer not in ("model.embed_tokens", "lm_head"):
        layer = "mtp." + layer.removeprefix("model.")
    return layer, leaf


def wanted(parameter: str, draft: bool, tensors: Tensors, used: set[str]) -> torch.Tensor:
    """What a parameter holds when ``tensors`` are loaded; ``used`` collects their names."""

    def take(name: str) -> torch.Tensor:
        used.add(name)
        return tensors[name]

    layer, leaf = published(parameter, draft)
    name = layer.rpartition(".")[2]
    if name == "experts":
        kind, _, suffix = leaf.partition("_")
        if f"{layer}.{EXPERTS[kind]}" in tensors:
            return take(f"{layer}.{EXPERTS[kind]}")
        parts = FUSED.get(EXPERTS[kind], (EXPERTS[kind],))
        experts = range(quantise.qwen3_5.EXPERTS)
        return torch.stack(
            [joined([take(f"{layer}.{e}.{part}.{suffix}") for part in parts]) for e in experts]
        )
    parts = FUSED.get(name, (name,))
    beside = layer.removesuffix(name)
    return joined([t for part in parts for t in [take(f"{beside}{part}.{leaf}")] * slots(part, leaf)])


def slots(part: str, leaf: str) -> int:
    return SLOTS.get(part, 1) if leaf.endswith("_scale") else 1


def joined(parts: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([part.reshape(1) if part.ndim == 0 else part for part in parts])


def differing(model: Any, draft: bool, tensors: Tensors, used: set[str]) -> list[str]:
    """The parameters that are not what the checkpoint says, to the bit."""
    wrong = []
    for name, parameter in model.named_parameters():
        if name.endswith("_blockscale_swizzled"):  # not loaded: processing makes it from the scales
            continue
        want = wanted(name, draft, tensors, used).to(parameter.dtype).reshape(parameter.shape)
        if not torch.equal(want.view(torch.uint8), parameter.data.contiguous().view(torch.uint8)):
            wrong.append(name)
    return wrong


def poison(model: Any) -> None:
    for parameter in model.parameters():
        parameter.data.view(torch.uint8).fill_(0xA5)


def fp8_matrix(layer: Any) -> torch.Tensor:
    """A loaded FP8 layer's weight ``[N, K]``; a scale for each of its parts, or one."""
    rows = torch.tensor(layer.logical_widths)
    return layer.weight.float() * layer.weight_scale.repeat_interleave(rows)[:, None]


def nvfp4_matrices(layer: Any, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Loaded experts' weights ``[E, N, K]``, and what one unit of E2M1 is worth at each place."""
    packed = getattr(layer, f"{kind}_weight")
    codes = torch.stack((packed & 15, packed >> 4), -1).flatten(-2).long()
    tensor_scale = getattr(layer, f"{kind}_weight_scale_2").reshape(packed.shape[0], -1, 1)
    tensor_scale = tensor_scale.repeat_interleave(packed.shape[1] // tensor_scale.shape[1], 1)
    unit = getattr(layer, f"{kind}_weight_scale").float().repeat_interleave(quantise.GROUP, -1) * tensor_scale
    return GRID[codes] * unit, unit


class Matrices:
    """What the loaded layers multiply by, and how far that is from the trained weights."""

    def __init__(self, model: Any, trained: Tensors) -> None:
        self.fp8: Tensors = {}
        self.experts: dict[str, list[torch.Tensor]] = {}
        self.errors: dict[str, float] = {}
        self.beyond: list[str] = []
        for name, layer in model.named_modules():
            method = type(getattr(layer, "quant_method", None)).__name__
            if method == "ModelOptFp8LinearMethod":
                self.fp8[name] = matrix = fp8_matrix(layer)
                weight = wanted(f"{name}.weight", False, trained, set()).float()
                # Half of E4M3's last place, and of its smallest step.
                bound = weight.abs() / 16 + layer.weight_scale.max() * 2.0**-10
                self.compare(name, matrix, weight, bound)
            elif method == "ModelOptNvFp4FusedMoEMethod":
                self.experts[name] = []
                for kind in EXPERTS:
                    matrix, unit = nvfp4_matrices(layer, kind)
                    weight = wanted(f"{name}.{kind}_weight", False, trained, set()).float()
                    self.experts[name].append(matrix)
                    # Half of the step from 4 to 6; a block of scale 0 holds less than half of E4M3's first.
                    bound = unit + getattr(layer, f"{kind}_weight_scale_2").max() * 6 * 2.0**-10
                    self.compare(f"{name}.{kind}", matrix, weight, bound)

    def compare(self, name: str, matrix: torch.Tensor, weight: torch.Tensor, bound: torch.Tensor) -> None:
        self.errors[name] = common.relative(matrix, weight)
        if bool(((matrix - weight).abs() > bound * 1.001).any()):
            self.beyond.append(name)


def processed_fp8(layer: Any) -> torch.Tensor:
    return layer.weight.t().float() * layer.weight_scale.reshape(-1, 1)


def fp8_twin(values: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Twin of the CUDA operator that rounds to FP8 with a given scale."""
    return quantise.to_fp8(values, scale), scale


def loaded(folder: Path) -> dict[str, Any]:
    """What differs from the checkpoint after loading and after processing, and from the trained weights."""
    text = (TRAINED / "held_out.txt").read_text("ascii").splitlines()[0]
    quantise.write(TRAINED / "qwen3_5", folder / "copy", text)
    tensors = load_file(folder / "copy" / "model.safetensors")
    trained = load_file(TRAINED / "qwen3_5" / "model.safetensors")
    patch = pytest.MonkeyPatch()
    with torch.no_grad(), marlin_twin.installed(patch):
        from sglang.srt.layers.quantization import utils

        patch.setattr(utils, "scaled_fp8_quant", fp8_twin)
        target, draft = (common.build(folder / "copy", draft=draft) for draft in (False, True))
        used: set[str] = set()
        for model in (target, draft):
            poison(model)
            model.load_weights(iter(tensors.items()))
        draft.set_embed_and_head(*target.get_embed_and_head())
        differ = differing(target, False, tensors, used), differing(draft, True, tensors, used)
        layers, matrices = dict(target.named_modules()), Matrices(target, trained)
        common.load(target, tensors)
        fp8 = {name: processed_fp8(layers[name]) for name in matrices.fp8}
        return {
            "quantization": target.quant_config.get_name(),
            "methods": methods(target),
            "draft_methods": sorted(set(methods(draft).values())),
            "differ": [*differ[0], *differ[1]],
            "unused": sorted(tensors.keys() - used),
            "errors": matrices.errors,
            "beyond": matrices.beyond,
            "processed_differ": [n for n, m in matrices.fp8.items() if not torch.equal(m, fp8[n])],
            "products": {n: common.moe_error(layers[n], *map(list, m)) for n, m in matrices.experts.items()},
        }


def methods(model: Any) -> dict[str, str]:
    """The class of each layer's quantization method."""
    found = {name: getattr(layer, "quant_method", None) for name, layer in model.named_modules()}
    return {name: type(method).__name__ for name, method in found.items() if method is not None}
