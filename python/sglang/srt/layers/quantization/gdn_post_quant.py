# SPDX-License-Identifier: Apache-2.0
"""NVFP4 post-quantization of BF16 linear layers through Marlin (GatedDeltaNet's projections first of all).

The weight is quantized in torch, then repacked by upstream's ``prepare_nvfp4_layer_for_marlin``; no CUTLASS
FP4 kernel is involved, so the path is the same on compute capability 8.0, 9.0 and 12.1. The global scale is a
power of two, which Marlin's BF16 epilogue keeps exactly.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from sglang.srt.layers.quantization import nvfp4_numerics
from sglang.srt.layers.quantization.base_config import LinearMethodBase


class MarlinPostQuantLinearMethod(LinearMethodBase):
    """The method of a layer whose BF16 weight became NVFP4 after loading."""

    def create_weights(self, layer: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError("NVFP4 post-quantization starts from a loaded BF16 weight")

    def apply(
        self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        from sglang.srt.layers.quantization.marlin_utils_fp4 import apply_fp4_marlin_linear

        return apply_fp4_marlin_linear(
            input=x,
            weight=layer.weight,
            weight_scale=layer.weight_scale,
            weight_global_scale=layer.weight_global_scale,
            workspace=layer.workspace,
            size_n=layer.output_size_per_partition,
            size_k=layer.input_size_per_partition,
            bias=bias,
        )


def _relative_error(
    weight: torch.Tensor, packed: torch.Tensor, block_scale: torch.Tensor, global_scale: torch.Tensor
) -> float:
    squared = torch.zeros((), dtype=torch.float64, device=weight.device)
    norm = torch.zeros_like(squared)
    for start in range(0, weight.shape[0], 4096):
        rows = slice(start, start + 4096)
        back = nvfp4_numerics.dequantize(packed[rows], block_scale[rows], global_scale)
        exact = weight[rows].float()
        squared += (back - exact).square().sum(dtype=torch.float64)
        norm += exact.square().sum(dtype=torch.float64)
    return float((squared / norm.clamp(min=torch.finfo(torch.float64).tiny)).sqrt())


class MarlinNvfp4Quantizer:
    name = "nvfp4"

    def refusal(self, layer: torch.nn.Module) -> str | None:
        columns = layer.weight.shape[1]
        if columns % nvfp4_numerics.GROUP:
            return f"{columns} columns are no multiple of {nvfp4_numerics.GROUP}"
        if getattr(layer, "bias", None) is not None:
            return "it has a bias"
        return None

    def quantize(self, layer: torch.nn.Module) -> tuple[int, float]:
        from sglang.srt.layers.quantization.marlin_utils_fp4 import prepare_nvfp4_layer_for_marlin

        weight = layer.weight.data
        packed, block_scale, global_scale = nvfp4_numerics.quantize(weight)
        error = _relative_error(weight, packed, block_scale, global_scale)
        layer.params_dtype = weight.dtype
        layer.output_size_per_partition, layer.input_size_per_partition = weight.shape
        former_config = getattr(layer, "quant_config", None)
        layer.quant_config = SimpleNamespace(group_size=nvfp4_numerics.GROUP)
        for name, value in (
            ("weight", packed),
            ("weight_scale", block_scale),
            ("weight_global_scale", global_scale),
        ):
            setattr(layer, name, torch.nn.Parameter(value, requires_grad=False))
        prepare_nvfp4_layer_for_marlin(layer)
        layer.quant_config = former_config
        layer.quant_method = MarlinPostQuantLinearMethod()
        stored = (layer.weight, layer.weight_scale, layer.weight_global_scale)
        return sum(tensor.numel() * tensor.element_size() for tensor in stored), error
