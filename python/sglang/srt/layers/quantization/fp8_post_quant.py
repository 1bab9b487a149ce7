# SPDX-License-Identifier: Apache-2.0
"""FP8 post-quantization: E4M3 weights with one scale an output channel, activations with one scale a token.

The product is ``fp8_scaled_mm`` (sgl-kernel's CUTLASS GEMM), not ``torch._scaled_mm``, which picks an sm_89
kernel on compute capability 12.1. On a CPU the same numerics run in torch.

The scale of a quantized weight is an attribute of the weight itself, so a draft model that takes over its
target's ``lm_head.weight`` takes over its scale.
"""

from __future__ import annotations

from typing import Any

import torch

from sglang.srt.layers.quantization.base_config import LinearMethodBase

E4M3_MAX = 448.0
# CUTLASS reads 16 bytes at a time of both operands.
ALIGNMENT = 16
SCALE_ATTRIBUTE = "fp8_channel_scale"
UNQUANTIZED_METHODS = frozenset({"UnquantizedLinearMethod", "UnquantizedEmbeddingMethod"})
_ROW_CHUNK = 4096


def quantize_channels(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, float]:
    """``[N, K]`` to ``(E4M3 [N, K], float32 scales [N, 1], relative error)``; a zero row keeps scale 1.

    Raises:
        ValueError: the weight holds an infinity or a NaN.
    """
    rows, columns = weight.shape
    quantized = torch.empty(rows, columns, dtype=torch.float8_e4m3fn, device=weight.device)
    scales = torch.empty(rows, 1, dtype=torch.float32, device=weight.device)
    squared_error = torch.zeros((), dtype=torch.float64, device=weight.device)
    squared_norm = torch.zeros_like(squared_error)
    for start in range(0, rows, _ROW_CHUNK):
        chunk = weight[start : start + _ROW_CHUNK].float()
        amax = chunk.abs().amax(dim=1, keepdim=True)
        scale = torch.where(amax > 0, amax / E4M3_MAX, torch.ones_like(amax))
        codes = (chunk / scale).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
        quantized[start : start + _ROW_CHUNK] = codes
        scales[start : start + _ROW_CHUNK] = scale
        squared_error += (codes.float() * scale - chunk).square().sum(dtype=torch.float64)
        squared_norm += chunk.square().sum(dtype=torch.float64)
    if not torch.isfinite(squared_norm):
        raise ValueError("cannot quantize a weight that holds an infinity or a NaN to FP8")
    error = float((squared_error / squared_norm.clamp(min=torch.finfo(torch.float64).tiny)).sqrt())
    return quantized, scales, error


def quantize_tokens(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``[M, K]`` to ``(E4M3 [M, K], float32 scales [M, 1])``: amax / 448 a row."""
    if x.is_cuda:
        from sglang.kernels.ops.quantization.fp8_kernel import sglang_per_token_quant_fp8

        return sglang_per_token_quant_fp8(x.contiguous())
    scale = x.float().abs().amax(dim=1, keepdim=True) / E4M3_MAX
    scaled = x.float() / torch.where(scale > 0, scale, torch.ones_like(scale))
    return scaled.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn), scale


def linear(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """``x @ weight.T`` with both operands in E4M3.

    Args:
        x: BF16 or FP16 ``[..., K]``.
        weight: E4M3 ``[N, K]``, row-major.
        scale: float32 ``[N, 1]``.

    Returns:
        ``[..., N]`` in x's dtype; FP32 accumulation, scales applied in the epilogue.
    """
    flat = x.reshape(-1, x.shape[-1])
    codes, token_scale = quantize_tokens(flat)
    if x.is_cuda:
        from sglang.kernels.ops.gemm import fp8_scaled_mm

        out = fp8_scaled_mm(codes, weight.t(), token_scale, scale, out_dtype=x.dtype, bias=bias)
    else:
        product = (codes.float() @ weight.float().t()) * token_scale * scale.t()
        out = (product if bias is None else product + bias.float()).to(x.dtype)
    return out.view(*x.shape[:-1], weight.shape[0])


class Fp8PostQuantLinearMethod(LinearMethodBase):
    """The method of a layer whose BF16 weight became FP8 after loading."""

    def create_weights(self, layer: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError("FP8 post-quantization starts from a loaded BF16 weight")

    def apply(
        self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        return linear(x, layer.weight, getattr(layer.weight, SCALE_ATTRIBUTE), bias)

    def embedding(self, layer: torch.nn.Module, input_: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("an FP8 post-quantized lm_head is no embedding table")


class Fp8Quantizer:
    name = "fp8"

    def refusal(self, layer: torch.nn.Module) -> str | None:
        rows, columns = layer.weight.shape
        if rows % ALIGNMENT or columns % ALIGNMENT:
            return f"{rows} x {columns} is no multiple of {ALIGNMENT}"
        return None

    def quantize(self, layer: torch.nn.Module) -> tuple[int, float]:
        codes, scales, error = quantize_channels(layer.weight.data)
        weight = torch.nn.Parameter(codes, requires_grad=False)
        setattr(weight, SCALE_ATTRIBUTE, scales)
        layer.weight = weight
        layer.quant_method = Fp8PostQuantLinearMethod()
        return codes.numel() + scales.numel() * 4, error


def holds_fp8(lm_head: torch.nn.Module) -> bool:
    """Whether this head's weight was post-quantized, here or in the target model that it was taken from.

    Raises:
        ValueError: the weight is a bare copy (``clone``, a row selection) that left its scale behind.
    """
    weight = getattr(lm_head, "weight", None)
    if hasattr(weight, SCALE_ATTRIBUTE):
        return True
    method = type(getattr(lm_head, "quant_method", None)).__name__
    if method in UNQUANTIZED_METHODS and getattr(weight, "dtype", None) == torch.float8_e4m3fn:
        raise ValueError(
            "this head's weight is FP8 without its channel scales: a draft with a token map of its "
            "own cannot take "
            "over a post-quantized lm_head; leave lm_head out of SGLANG_FP8_POST_QUANT"
        )
    return False


def lm_head_logits(
    lm_head: torch.nn.Module, hidden_states: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Logits of a post-quantized head, ``[rows, vocabulary of this rank]`` in the hidden states' dtype."""
    return linear(hidden_states, lm_head.weight, getattr(lm_head.weight, SCALE_ATTRIBUTE), bias)
