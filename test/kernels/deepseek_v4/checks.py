# SPDX-License-Identifier: Apache-2.0
"""The hyper-connection kernels against float64 on any device: fresh inputs, poisoned outputs and buffers."""

from __future__ import annotations

import torch

from sglang.srt.mega.models.deepseek_v4.kernels import HyperConnection, Mix

from . import reference as ref

BF16_LIMIT = 4e-3  # of the norm; one rounding is 1.7e-3
MIX_LIMIT = 3e-5  # of the largest coefficient: fp32 projection, approximate exponentials and reciprocals


class Inputs:
    """One seam of ``rows`` rows. ``extra`` rows at the end of every output stay poisoned."""

    extra = 2

    def __init__(self, seam: HyperConnection, seed: int, rows: int, spread: float = 1.0) -> None:
        shape, self.rows = seam.shape, rows
        generator = torch.Generator().manual_seed(seed)

        def normal(*size: int, by: float = 1.0) -> torch.Tensor:
            return (torch.randn(*size, generator=generator) * by).to(seam.device)

        self.x = normal(rows, shape.hidden, by=2 * spread).bfloat16()
        self.residual = normal(rows, 4, shape.hidden, by=4 * spread).bfloat16()
        self.residual[:, 1] *= 50  # streams of unlike size
        self.mix = Mix(
            normal(rows, 4).sigmoid(), 2 * normal(rows, 4).sigmoid(), normal(rows, 4, 4).softmax(-1)
        )
        self.fn = normal(24, 4 * shape.hidden, by=shape.hidden**-0.5)
        self.mix_scale, self.base = normal(3), normal(24)
        self.norm_weight = (1 + normal(shape.hidden, by=0.1)).bfloat16()
        room = rows + self.extra

        def poisoned(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.full((room, *size), float("nan"), dtype=dtype, device=seam.device)

        self.updated = poisoned(4, shape.hidden, dtype=torch.bfloat16)
        self.normed = poisoned(shape.hidden, dtype=torch.bfloat16)
        self.next_mix = Mix(poisoned(4), poisoned(4), poisoned(4, 4))

    def run(self, seam: HyperConnection) -> None:
        seam._collapsed.fill_(float("nan"))
        seam._sums.fill_(float("nan"))
        rows, after = self.rows, self.next_mix
        seam(
            self.x,
            self.residual,
            self.mix,
            self.fn,
            self.mix_scale,
            self.base,
            self.norm_weight,
            self.updated[:rows],
            self.normed[:rows],
            Mix(after.pre[:rows], after.post[:rows], after.comb[:rows]),
        )


def check(seam: HyperConnection, seed: int, rows: int, spread: float = 1.0) -> dict[str, float]:
    """Raises AssertionError with shape, seed and error; returns the error of each output."""
    shape, inputs = seam.shape, Inputs(seam, seed, rows, spread)
    inputs.run(seam)
    after, got_streams = inputs.next_mix, inputs.updated[:rows]
    # What follows reads the streams as the kernel rounded them, as the stock kernels do.
    collapsed = ref.bf16(ref.collapse(got_streams, inputs.mix.pre))
    pre, post, comb = ref.mix(
        got_streams,
        inputs.fn,
        inputs.mix_scale,
        inputs.base,
        shape.iterations,
        shape.rms_epsilon,
        shape.epsilon,
    )
    errors = {
        "streams": _norm_error(got_streams, ref.post(inputs.x, inputs.residual, inputs.mix)),
        "normed": _norm_error(
            inputs.normed[:rows], ref.norm(collapsed, inputs.norm_weight, shape.norm_epsilon)
        ),
        "pre": _largest_error(after.pre[:rows], pre),
        "post": _largest_error(after.post[:rows], post),
        "comb": _largest_error(after.comb[:rows], comb),
    }
    for name, error in errors.items():
        limit = BF16_LIMIT if name in ("streams", "normed") else MIX_LIMIT
        assert error <= limit, f"{name}, {shape}, {rows} rows, seed {seed}: {error:.2e}, limit {limit:.0e}"
    for name, tensor in (
        ("streams", inputs.updated),
        ("normed", inputs.normed),
        *((name, getattr(after, name)) for name in ("pre", "post", "comb")),
    ):
        assert tensor[rows:].isnan().all(), f"{name}: a row beyond the step's {rows} was written"
    return errors


def _norm_error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.double() - want).norm() / want.norm())


def _largest_error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.double() - want).abs().max() / want.abs().max())
