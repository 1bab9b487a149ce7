# SPDX-License-Identifier: Apache-2.0
"""RMSNorm and rotary embedding of queries and latents, under the signatures of SGLang's fused kernels.

``freqs_cis`` is the whole table of complex factors [positions, n]; the last 2n channels of a row are n
interleaved pairs. Computed in FP32, stored in the tensor's dtype.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rotate_tail(x: Tensor, freqs: Tensor, inverse: bool = False) -> Tensor:
    """``x`` [tokens, ..., dim] with its last 2n channels turned by ``freqs`` [tokens, n]; FP32."""
    head, tail = x.float().split([x.shape[-1] - 2 * freqs.shape[-1], 2 * freqs.shape[-1]], dim=-1)
    pairs = torch.view_as_complex(tail.unflatten(-1, (-1, 2)).contiguous())
    factors = (freqs.conj() if inverse else freqs).view(x.shape[0], *[1] * (x.dim() - 2), -1)
    return torch.cat([head, torch.view_as_real(pairs * factors).flatten(-2)], dim=-1)


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """RMSNorm over the last dimension; FP32."""
    x = x.float()
    normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return normed if weight is None else normed * weight.float()


def rope_(q: Tensor, k: Tensor | None, freqs_cis: Tensor, positions: Tensor, inverse: bool = False) -> None:
    """Rotates ``q`` and ``k`` [tokens, heads, 2n] in place."""
    for x in (q, k):
        if x is not None:
            x.copy_(rotate_tail(x, freqs_cis[positions], inverse))


def norm_rope(x: Tensor, weight: Tensor | None, eps: float, freqs_cis: Tensor, positions: Tensor) -> Tensor:
    """Norm, then rotation of the tail; FP32."""
    return rotate_tail(rms_norm(x, weight, eps), freqs_cis[positions])


def q_norm_rope_(q: Tensor, out: Tensor, eps: float | None, freqs_cis: Tensor, positions: Tensor) -> None:
    """``out`` = ``q``, normed over each head unless ``eps`` is None, its tail rotated."""
    normed = q if eps is None else rms_norm(q, None, eps)
    out.copy_(rotate_tail(normed, freqs_cis[positions]))
