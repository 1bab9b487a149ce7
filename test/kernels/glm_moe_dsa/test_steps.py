# SPDX-License-Identifier: Apache-2.0
"""GLM's sparse attention in the CPU emulator against float64: odd sizes, both cache layouts, padding."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import pytest
import torch

from sglang.srt.mega.device.emulator import Schedule, emulator
from sglang.srt.mega.device.spec import SHARED_LIMIT
from sglang.srt.mega.models.glm_moe_dsa.kernels import SparseMla
from sglang.srt.mega.models.glm_moe_dsa.tactics import Shape

from .checks import SCALE, Inputs, check

pytestmark = pytest.mark.kernels

SHAPES = {
    "fp8": Shape(heads=8, top_k=192, fp8=True),
    "bf16": Shape(heads=8, top_k=192, fp8=False),
    "fp8, 16 heads": Shape(heads=16, top_k=64, fp8=True),
    "bf16, 5 heads, sm_121's form": Shape(5, 68, False, SHARED_LIMIT["sm_121a"]),
    "fp8, 11 heads, sm_121's form": Shape(11, 192, True, SHARED_LIMIT["sm_121a"]),
    "fp8, more tiles than stages": Shape(heads=8, top_k=452, fp8=True),
}


@cache
def loaded(shape: Shape) -> SparseMla:
    return SparseMla(shape, "cpu")


@pytest.mark.parametrize("name", SHAPES)
def test_matches_float64(name: str) -> None:
    seed = random.randrange(1 << 30)
    shape = SHAPES[name]
    check(loaded(shape), seed, [shape.top_k, 1, 0, shape.top_k // 3], spread=3.0)


@pytest.mark.parametrize("share", [1, 2, 3])
@pytest.mark.parametrize("fp8", [True, False])
def test_any_split_gives_the_same(fp8: bool, share: int) -> None:
    seed = random.randrange(1 << 30)
    check(loaded(replace(SHAPES["fp8"], fp8=fp8)), seed, [100], share=share)


@pytest.mark.parametrize("fp8", [True, False])
def test_block_scales_of_any_size(fp8: bool) -> None:
    """Scales from 2^-40 to 2^40 within one list, far past what fp16 holds."""
    check(loaded(replace(SHAPES["fp8"], fp8=fp8)), random.randrange(1 << 30), [150, 7], spread=10.0)


def test_queries_past_fp16() -> None:
    mla = loaded(SHAPES["fp8"])
    inputs = Inputs(mla, seed := random.randrange(1 << 30), [90], tokens=300)
    plain = inputs.run(mla).clone()
    inputs.query, inputs.rotated = inputs.query * 2.0**20, inputs.rotated * 2.0**20
    rows = inputs.chosen.shape[0]
    mla(inputs.query, inputs.rotated, inputs.cache, inputs.chosen, SCALE * 2.0**-20, inputs.out[:rows])
    assert torch.equal(plain, inputs.out[:rows]), f"seed {seed}: a power of two in the query is exact"


def test_late_copies_and_random_order() -> None:
    mla = loaded(SHAPES["fp8, more tiles than stages"])
    seed = random.randrange(1 << 30)
    inputs = Inputs(mla, seed, [452, 31], tokens=999)
    plain = inputs.run(mla, 2).clone()
    for schedule in (Schedule.late(), Schedule.seeded(seed)):
        inputs.out.fill_(float("nan"))
        with emulator().together(schedule):
            inputs.run(mla, 2)
        assert torch.equal(plain, inputs.out[:2]), f"seed {seed}, {schedule}"


def test_nan_in_the_cache_is_seen() -> None:
    """A corrupted token that a row chose must not be hidden."""
    mla = loaded(SHAPES["bf16"])
    inputs = Inputs(mla, 3, [40, 40], tokens=999)
    slot = int(inputs.chosen[0][inputs.chosen[0] >= 0][5])
    inputs.chosen[1][inputs.chosen[1] == slot] = -1
    inputs.cache[slot] = float("nan")
    out = inputs.run(mla)
    assert out[0].isnan().all() and not out[1].isnan().any()


def test_wrong_arguments_are_refused() -> None:
    mla = loaded(SHAPES["fp8"])
    inputs = Inputs(mla, 0, [4], tokens=50)
    with pytest.raises(ValueError, match="cache rows take 1152 bytes"):
        mla(
            inputs.query,
            inputs.rotated,
            torch.zeros(9, 576, dtype=torch.bfloat16),
            inputs.chosen,
            1.0,
            inputs.out[:1],
        )
    with pytest.raises(ValueError, match="17 rows; the sparse MLA kernel serves 1 to 16"):
        mla(
            inputs.query.expand(17, -1, -1),
            inputs.rotated,
            inputs.cache,
            inputs.chosen,
            1.0,
            inputs.out[:1],
        )
    with pytest.raises(ValueError, match="64 query heads"):
        Shape(heads=64, top_k=2048, fp8=True)
