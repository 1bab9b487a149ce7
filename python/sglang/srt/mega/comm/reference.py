# SPDX-License-Identifier: Apache-2.0
"""What the hop kernels compute, in plain torch with the same rounding points."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def all_reduce(partials: Sequence[torch.Tensor]) -> torch.Tensor:
    """The sum of bf16 tensors in fp32, in rank order, rounded to bf16 once."""
    total = torch.zeros_like(partials[0], dtype=torch.float32)
    for partial in partials:
        total += partial.float()
    return total.bfloat16()


def add_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float, gemma: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """(normed, residual), both bf16, of [rows, hidden] inputs.

    RMSNorm: ``forward_native`` of srt/layers/layernorm.py, which norms the unrounded fp32 sum. GemmaRMSNorm:
    the sum is rounded to bf16 first and the gain is 1 + weight.
    """
    if gemma:
        summed = (x + residual).float()
        gain = 1.0 + weight.float()
    else:
        summed = x.float() + residual.float()
        gain = weight.float()
    inverse = torch.rsqrt(summed.square().mean(dim=-1, keepdim=True) + epsilon)
    return (summed * inverse * gain).bfloat16(), summed.bfloat16()
