# SPDX-License-Identifier: Apache-2.0
"""GLM's sparse attention in float64, and cache rows made by an independent quantiser."""

from __future__ import annotations

import torch

BLOCK = 128


def fp8_rows(latent: torch.Tensor, rotated: torch.Tensor) -> torch.Tensor:
    """[tokens, 656] uint8: e4m3 latents, an fp32 scale for each 128 of them (the largest magnitude over
    448), bf16 rotated channels."""
    blocks = latent.float().unflatten(-1, (-1, BLOCK))
    scale = blocks.abs().amax(-1) / 448
    codes = (blocks / scale[..., None].clamp(min=1e-30)).clamp(-448, 448).to(torch.float8_e4m3fn)
    parts = (codes.flatten(-2).view(torch.uint8), scale.contiguous().view(torch.uint8))
    return torch.cat((*parts, rotated.contiguous().view(torch.uint8)), -1)


def bf16_rows(latent: torch.Tensor, rotated: torch.Tensor) -> torch.Tensor:
    return torch.cat((latent, rotated), -1)


def read_rows(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(latent, rotated) in float64 of cache rows of either layout."""
    if rows.dtype == torch.bfloat16:
        return rows[:, :512].double(), rows[:, 512:].double()
    latent = rows[:, :512].contiguous().view(torch.float8_e4m3fn).float().double()
    scale = rows[:, 512:528].contiguous().view(torch.float32).double()
    latent = (latent.unflatten(-1, (-1, BLOCK)) * scale[..., None]).flatten(-2)
    return latent, rows[:, 528:].contiguous().view(torch.bfloat16).double()


def sparse_mla(
    query: torch.Tensor, rotated: torch.Tensor, cache: torch.Tensor, chosen: torch.Tensor, scale: float
) -> torch.Tensor:
    """[rows, heads, 512] float64; a row without a chosen token gives zeros."""
    out = torch.zeros_like(query, dtype=torch.float64)
    for row, slots in enumerate(chosen):
        slots = slots[slots >= 0].long()
        if len(slots):
            latent, turned = read_rows(cache[slots])
            scores = query[row].double() @ latent.T + rotated[row].double() @ turned.T
            out[row] = torch.softmax(scores * scale, -1) @ latent
    return out
