# SPDX-License-Identifier: Apache-2.0
"""Sparse attention against float64 on any device: fresh inputs, poisoned outputs, rows that chose little.

The emulator's tests and the H200 script run the same function.
"""

from __future__ import annotations

import torch

from sglang.srt.mega.models.glm_moe_dsa.kernels import SparseMla
from sglang.srt.mega.models.glm_moe_dsa.tactics import LATENT, ROPE

from . import reference

LIMIT = 4e-3  # of the norm: the result's and the weights' bf16 or fp16 roundings
SCALE = 256**-0.5


class Inputs:
    """Random queries and a cache of ``tokens`` rows, poisoned where nothing is chosen.

    ``chosen`` holds how many tokens each row chooses, in random places of its list.
    """

    def __init__(self, mla: SparseMla, seed: int, chosen: list[int], tokens: int, spread: float = 1.0):
        shape, rows = mla.shape, len(chosen)
        generator = torch.Generator().manual_seed(seed)

        def normal(*size: int, by: float = 1.0) -> torch.Tensor:
            return (torch.randn(*size, generator=generator) * by).to(torch.bfloat16)

        # Heads outermost, as the absorbing product leaves them.
        self.query = normal(shape.heads, rows, LATENT).to(mla.device).transpose(0, 1)
        self.rotated = normal(rows, shape.heads, ROPE).to(mla.device)
        latent = normal(tokens, LATENT) * torch.exp2(spread * torch.randn(tokens, 1, generator=generator)).to(
            torch.bfloat16
        )
        latent[:, :3] *= 64  # outliers, so that most of a block lies near zero
        make = reference.fp8_rows if shape.fp8 else reference.bf16_rows
        self.cache = make(latent, normal(tokens, ROPE))
        self.chosen = torch.full((rows, shape.top_k), -1, dtype=torch.int32)
        for row, count in enumerate(chosen):
            places = torch.randperm(shape.top_k, generator=generator)[:count]
            slots = torch.randint(tokens, (count,), generator=generator)
            self.chosen[row, places] = slots.to(torch.int32)
        unused = torch.ones(tokens, dtype=torch.bool)
        unused[self.chosen[self.chosen >= 0].long()] = False
        self.cache[unused] = float("nan") if self.cache.dtype == torch.bfloat16 else 0xFF
        self.cache, self.chosen = self.cache.to(mla.device), self.chosen.to(mla.device)
        self.out = torch.full(
            (rows + 1, shape.heads, LATENT), float("nan"), dtype=torch.bfloat16, device=mla.device
        )

    def run(self, mla: SparseMla, share: int | None = None) -> torch.Tensor:
        rows = self.chosen.shape[0]
        mla._partial.fill_(float("nan"))
        mla._stats.fill_(float("nan"))
        mla(self.query, self.rotated, self.cache, self.chosen, SCALE, self.out[:rows], share)
        return self.out[:rows]


def check(
    mla: SparseMla,
    seed: int,
    chosen: list[int],
    tokens: int = 999,
    share: int | None = None,
    spread: float = 1.0,
) -> float:
    """Raises AssertionError with shape, seed and error; returns the largest relative error."""
    inputs = Inputs(mla, seed, chosen, tokens, spread)
    got = inputs.run(mla, share).double()
    want = reference.sparse_mla(inputs.query, inputs.rotated, inputs.cache, inputs.chosen, SCALE)
    assert inputs.out[len(chosen) :].isnan().all(), "a row beyond the step's was written"
    worst = 0.0
    for row, count in enumerate(chosen):
        error = float((got[row] - want[row]).norm() / want[row].norm().clamp(min=1e-30))
        where = f"{mla.shape}, seed {seed}, row {row} of {chosen}, {share} splits: error {error:.2e}"
        assert error <= LIMIT if count else not got[row].any(), where
        worst = max(worst, error if count else 0.0)
    return worst
