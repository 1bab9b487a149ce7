# SPDX-License-Identifier: Apache-2.0
"""Keep NVFP4 block scales inside the range that Marlin's BF16 kernels read.

Marlin stores a block scale ``s`` as the top byte of FP16 ``s * 2**7`` (S0E5M3) and widens it to BF16 by
moving the exponent's top bit apart from its other four. That is the value only while the top bit is set, that
is from ``s = 2**-6`` up: E4M3 scales below it (down to 2**-9) are read as about 2**-120 and their blocks
become zero. A checkpoint whose scales are small throughout loses everything; so each tensor is shifted, by a
power of two and therefore exactly, until its largest scale is near E4M3's 448, and its global scale is
shifted back.
"""

from __future__ import annotations

import torch

E4M3_MAX = 448.0
BF16_SMALLEST = 2.0**-6


def normalize(block_scale: torch.Tensor, global_scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same weights with block scales as large as E4M3 allows.

    Args:
        block_scale: E4M3 ``[N, K/16]``, or ``[E, N, K/16]`` with one tensor an expert.
        global_scale: float32 scalar (any shape of one element), or ``[E]`` / ``[E, 1]``.

    Returns:
        Both, in their shapes and dtypes; ``block * global`` of every block is unchanged bit for bit.
    """
    tensors = block_scale.shape[0] if block_scale.dim() == 3 else 1
    values = block_scale.float().reshape(tensors, -1)
    largest = values.amax(dim=1).clamp(min=torch.finfo(torch.float32).tiny)
    shift = torch.floor(torch.log2(E4M3_MAX / largest)).clamp(min=0, max=18)
    shift = torch.where(values.amax(dim=1) > 0, shift, torch.zeros_like(shift))
    if not bool(shift.any()):
        return block_scale, global_scale
    grown = (values * torch.exp2(shift)[:, None]).reshape(block_scale.shape).to(block_scale.dtype)
    back = torch.exp2(-shift).reshape([tensors] + [1] * (global_scale.dim() - 1) if tensors > 1 else [])
    return grown, (global_scale.float() * back).reshape(global_scale.shape)
