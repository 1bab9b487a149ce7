# SPDX-License-Identifier: Apache-2.0
"""V4.1's hyper-connection kernels in the CPU emulator against float64, at decode and verify widths."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import pytest
import torch

from sglang.srt.mega.device.emulator import Schedule, emulator
from sglang.srt.mega.models.deepseek_v4.kernels import HyperConnection
from sglang.srt.mega.models.deepseek_v4.tactics import Shape, slice_of

from .checks import Inputs, check

pytestmark = pytest.mark.kernels

TINY = Shape(256, slice_of(256), iterations=20, rms_epsilon=1e-6, epsilon=1e-6, norm_epsilon=1e-6)
SHAPES = {
    "tiny checkpoint": TINY,
    "slices of 40, no epsilon in the norms": Shape(360, 40, 20, 1e-20, 1e-6, 1e-20),
    "one slice, one turn": replace(TINY, hidden=24, slice=24, iterations=1),
    "more columns than threads": Shape(2560, 128, 3, 1e-6, 1e-6, 1e-6),
}


@cache
def loaded(shape: Shape, rows: int) -> HyperConnection:
    return HyperConnection(shape, "cpu", rows)


@pytest.mark.parametrize("rows", [1, 6, 11])
@pytest.mark.parametrize("name", SHAPES)
def test_matches_float64(name: str, rows: int) -> None:
    check(loaded(SHAPES[name], 16), random.randrange(1 << 30), rows)


@pytest.mark.parametrize("rows", [48, 53])
def test_wide_verify_steps(rows: int) -> None:
    """A full bucket, and one row tile more than it holds."""
    check(loaded(TINY, 64), random.randrange(1 << 30), rows)


@pytest.mark.parametrize("spread", [2.0**-40, 2.0**40])
def test_streams_of_any_size(spread: float) -> None:
    check(loaded(SHAPES["slices of 40, no epsilon in the norms"], 16), random.randrange(1 << 30), 3, spread)


def test_a_row_is_the_same_in_any_step() -> None:
    """A request's bits do not depend on its neighbours."""
    seam, seed = loaded(TINY, 64), random.randrange(1 << 30)
    wide = Inputs(seam, seed, 48)
    wide.run(seam)
    one = Inputs(seam, seed, 1)
    row = 37
    one.x, one.residual = wide.x[row : row + 1], wide.residual[row : row + 1]
    one.mix = replace(
        wide.mix, **{name: value[row : row + 1].clone() for name, value in vars(wide.mix).items()}
    )
    one.fn, one.mix_scale, one.base, one.norm_weight = wide.fn, wide.mix_scale, wide.base, wide.norm_weight
    one.run(seam)
    for name, value in (("updated", wide.updated), ("normed", wide.normed)):
        assert torch.equal(getattr(one, name)[0], value[row]), f"{name}, seed {seed}"
    assert torch.equal(one.next_mix.comb[0], wide.next_mix.comb[row]), f"comb, seed {seed}"


def test_random_order() -> None:
    seam, seed = loaded(TINY, 16), random.randrange(1 << 30)
    plain, shuffled = Inputs(seam, seed, 9), Inputs(seam, seed, 9)
    plain.run(seam)
    with emulator().together(Schedule.seeded(seed)):
        shuffled.run(seam)
    assert torch.equal(plain.normed[:9], shuffled.normed[:9]), f"seed {seed}"
    assert torch.equal(plain.next_mix.comb[:9], shuffled.next_mix.comb[:9]), f"seed {seed}"


def test_wrong_arguments_are_refused() -> None:
    seam = loaded(TINY, 16)
    inputs = Inputs(seam, 0, 17)
    with pytest.raises(ValueError, match="17 rows; the hyper-connection kernel was loaded for 1 to 16"):
        inputs.run(seam)
    inputs = Inputs(seam, 0, 2)
    inputs.fn = inputs.fn.bfloat16()
    with pytest.raises(ValueError, match=r"fn must be contiguous torch\.float32 \(24, 1024\)"):
        inputs.run(seam)
    with pytest.raises(ValueError, match="no hyper-connection kernels for hidden 250"):
        replace(TINY, hidden=250, slice=50)
