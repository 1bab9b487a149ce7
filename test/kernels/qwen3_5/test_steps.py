# SPDX-License-Identifier: Apache-2.0
"""The fused steps in the CPU emulator against float64, at the sizes of the tiny checkpoint."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

from sglang.srt.mega.models.qwen3_5.kernels import Kernels
from sglang.srt.mega.models.qwen3_5.shape import TINY, Shape
from sglang.srt.mega.models.qwen3_5.tactics import ENTRIES, bucket_of
from sglang.srt.mega.models.qwen3_5.workspace import Workspace

from .checks import CHECKS

pytestmark = pytest.mark.kernels

ROWS = (  # live rows, rows that are padding
    (1, ()),
    (2, (1,)),
    (3, ()),
    (8, (2, 7)),
)
NEEDS = {"attn_decode": ("attn_decode", "attn_merge")}


@cache
def kernels(shape: Shape, bucket: int, check: str) -> Kernels:
    return Kernels(shape, "cpu", (bucket,), NEEDS.get(check, (check,)))


@pytest.mark.parametrize(("rows", "padding"), ROWS)
@pytest.mark.parametrize("check", CHECKS)
def test_step_matches_float64(check: str, rows: int, padding: tuple[int, ...]) -> None:
    CHECKS[check](kernels(TINY, bucket_of(rows), check), rows, rows, padding)


def test_bf16_state() -> None:
    CHECKS["gdn_step"](kernels(replace(TINY, state_bf16=True), 2, "gdn_step"), 5, 2, ())


def test_three_position_axes() -> None:
    CHECKS["attn_decode"](kernels(replace(TINY, mrope=True), 2, "attn_decode"), 6, 2, ())


def test_every_entry_is_checked() -> None:
    checked = set(CHECKS) | {entry for entries in NEEDS.values() for entry in entries}
    assert checked == set(ENTRIES)


def test_a_wrong_layout_is_refused() -> None:
    loaded, space = kernels(TINY, 1, "gdn_out"), Workspace.allocate(TINY, "cpu")
    weight = torch.zeros(TINY.hidden, TINY.gdn_inner, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"norm_weight must be contiguous torch\.float32"):
        loaded.gdn_out(space, weight, torch.zeros(128, dtype=torch.bfloat16), 1)
    with pytest.raises(ValueError, match="9 rows; the kernels serve 1 to 8"):
        loaded.gdn_out(space, weight, torch.zeros(128), 9)
