# SPDX-License-Identifier: Apache-2.0
"""NVFP4 in plain torch: what the packed bytes of a checkpoint mean.

A weight ``[N, K]`` is three tensors: E2M1 codes, two to a byte with the even column in the low nibble
(``uint8 [N, K/2]``); one E4M3 scale per 16 columns (``[N, K/16]``); one FP32 scale per tensor. The value of
an
element is ``e2m1(code) * block_scale * global_scale``. Numerics follow the OCP E2M1 table and ModelOpt's
export: block scale = amax / 6, rounded to E4M3; codes round to nearest, ties to even.
"""

from __future__ import annotations

import torch

GROUP = 16
E2M1_MAX = 6.0
E4M3_MAX = 448.0
E4M3_MIN_SUBNORMAL = 2.0**-9

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_ROW_CHUNK = 4096


def e2m1_table(device: torch.device | str = "cpu") -> torch.Tensor:
    """The 16 E2M1 values by code, float32 ``[16]``; codes 8-15 are the negatives of 0-7."""
    positive = torch.tensor(_E2M1, dtype=torch.float32, device=device)
    return torch.cat([positive, -positive])


def unpack_codes(packed: torch.Tensor) -> torch.Tensor:
    """``uint8 [..., K/2]`` to codes 0-15, ``uint8 [..., K]``."""
    return torch.stack([packed & 0xF, packed >> 4], dim=-1).flatten(-2)


def dequantize(
    packed: torch.Tensor, block_scale: torch.Tensor, global_scale: torch.Tensor | float
) -> torch.Tensor:
    """The weight as float32 ``[..., N, K]``.

    ``global_scale`` is a scalar or broadcasts against ``[..., N, 1]`` (one per fused shard's rows or per
    expert).
    """
    values = e2m1_table(packed.device)[unpack_codes(packed).long()]
    scale = block_scale.float() * global_scale
    return values * scale.repeat_interleave(GROUP, dim=-1)


def _round_e2m1(x: torch.Tensor) -> torch.Tensor:
    """Codes of the nearest E2M1 values of float32 ``x``; past +-6 saturates."""
    magnitude = x.abs().clamp(max=E2M1_MAX)
    step = torch.where(magnitude < 2.0, 0.5, torch.where(magnitude < 4.0, 1.0, 2.0))
    rounded = torch.round(magnitude / step) * step
    grid = torch.tensor(_E2M1, dtype=torch.float32, device=x.device)
    code = torch.searchsorted(grid, rounded.contiguous()).to(torch.uint8)
    return code | ((x < 0) & (rounded > 0)).to(torch.uint8) << 3


def power_of_two_global_scale(amax: torch.Tensor) -> torch.Tensor:
    """The smallest power of two that keeps ``amax / (6 * scale)`` within E4M3, float32 scalar; 1.0 for a
    zero tensor.

    Marlin multiplies by the global scale in the activation's dtype: a power of two survives BF16 and FP16
    exactly.
    """
    exact = amax.float() / (E2M1_MAX * E4M3_MAX)
    exponent = torch.ceil(torch.log2(exact.clamp(min=torch.finfo(torch.float32).tiny)))
    return torch.where(amax > 0, torch.exp2(exponent), torch.ones_like(exponent))


def quantize(
    weight: torch.Tensor, global_scale: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``[N, K]`` to ``(codes uint8 [N, K/2], scales E4M3 [N, K/16], global float32 scalar)``.

    ``global_scale`` defaults to :func:`power_of_two_global_scale`. Rows are done in chunks, so the FP32
    copy in flight is at most 4096 rows.

    Raises:
        ValueError: K is no multiple of 16, or the weight holds an infinity or a NaN.
    """
    rows, columns = weight.shape
    if columns % GROUP:
        raise ValueError(f"NVFP4 needs columns in groups of {GROUP}, got a weight of {rows} x {columns}")
    amax = weight.abs().amax().float()
    if not torch.isfinite(amax):
        raise ValueError("cannot quantize a weight that holds an infinity or a NaN to NVFP4")
    scale = power_of_two_global_scale(amax) if global_scale is None else global_scale.float()
    packed, block_scales = [], []
    for chunk in weight.split(_ROW_CHUNK):
        blocks = chunk.float().unflatten(-1, (-1, GROUP)) / scale
        block_scale = (blocks.abs().amax(dim=-1) / E2M1_MAX).clamp(max=E4M3_MAX).to(torch.float8_e4m3fn)
        divisor = block_scale.float().unsqueeze(-1)
        codes = _round_e2m1(torch.where(divisor > 0, blocks / divisor, torch.zeros_like(blocks))).flatten(-2)
        packed.append(codes[:, 0::2] | codes[:, 1::2] << 4)
        block_scales.append(block_scale)
    return torch.cat(packed), torch.cat(block_scales), scale
