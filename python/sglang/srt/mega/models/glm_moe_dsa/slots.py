# SPDX-License-Identifier: Apache-2.0
"""The slots of GLM-5.x: each is a module that the model calls, and its stock twin is that module."""

from __future__ import annotations

from sglang.srt.mega import slots
from sglang.srt.mega.build import NO_KERNEL
from sglang.srt.mega.models.glm_moe_dsa.tactics import MAX_ROWS
from sglang.srt.mega.plan import Unavailable
from sglang.srt.mega.slots import BITWISE, TOLERANCE, Numerics, Slot

PARITY = "test/e2e/mega/test_families.py"
KERNELS = frozenset({"sparse_mla"})

SLOTS = slots.table(
    [
        Slot(
            "attention",
            1,
            MAX_ROWS,
            Numerics(BITWISE, test=PARITY),
            stock="layer.self_attn",
            reads=("KV cache", "index keys", "request table"),
            writes=("KV cache", "index keys"),
        ),
        Slot(
            "sparse_mla",
            1,
            MAX_ROWS,
            # The stock kernels round weights, and FP8 values after scaling, to bf16.
            Numerics(TOLERANCE, test=PARITY, rtol=2**-6),
            stock="self_attn.attn_mqa",
            reads=("KV cache", "request table"),
            writes=("KV cache",),
            default=False,  # not run inside SGLang's CUDA graphs yet
        ),
        Slot("moe", 1, MAX_ROWS, Numerics(BITWISE, test=PARITY), stock="layer.mlp"),
    ]
)


def without_weights(slot: Slot) -> Unavailable | None:
    """Why a slot has no kernel whatever the checkpoint, or None."""
    return None if slot.name in KERNELS else NO_KERNEL
