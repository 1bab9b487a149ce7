# SPDX-License-Identifier: Apache-2.0
"""The seam between two sublayers with hyper-connections in float64, rounded where the stock kernels round."""

from __future__ import annotations

import torch

from sglang.srt.mega.models.deepseek_v4.kernels import Mix


def bf16(x: torch.Tensor) -> torch.Tensor:
    """Rounded to bf16, once: float64 goes through round-to-odd fp32, so that no tie is made on the way."""
    single = x.float()
    exact = single.double() == x
    bits = single.view(torch.int32)
    toward_zero = torch.where(single.abs().double() > x.abs(), bits - 1, bits)
    return torch.where(exact, bits, toward_zero | 1).view(torch.float32).to(torch.bfloat16).double()


def post(x: torch.Tensor, residual: torch.Tensor, mix: Mix) -> torch.Tensor:
    """[rows, 4, hidden]: stream j becomes post_j x + sum_i comb_ij r_i."""
    kept = torch.einsum("mij,mih->mjh", mix.comb.double(), residual.double())
    return mix.post.double()[..., None] * x.double()[:, None] + kept


def collapse(streams: torch.Tensor, pre: torch.Tensor) -> torch.Tensor:
    return torch.einsum("mi,mih->mh", pre.double(), streams.double())


def norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    return x * (x.square().mean(-1, keepdim=True) + epsilon).rsqrt() * weight.double()


def mix(
    streams: torch.Tensor,
    fn: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    iterations: int,
    rms_epsilon: float,
    epsilon: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    flat, scale, base = streams.double().flatten(1), scale.double(), base.double()
    raw = flat @ fn.double().T * (flat.square().mean(-1, keepdim=True) + rms_epsilon).rsqrt()
    pre = torch.sigmoid(raw[:, :4] * scale[0] + base[:4]) + epsilon
    after = 2 * torch.sigmoid(raw[:, 4:8] * scale[1] + base[4:8])
    comb = (raw[:, 8:] * scale[2] + base[8:]).unflatten(1, (4, 4)).softmax(-1) + epsilon
    for turn in range(iterations):
        if turn:
            comb = comb / (comb.sum(-1, keepdim=True) + epsilon)
        comb = comb / (comb.sum(-2, keepdim=True) + epsilon)
    return pre, after, comb
