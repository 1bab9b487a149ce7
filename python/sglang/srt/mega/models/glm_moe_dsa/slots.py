# SPDX-License-Identifier: Apache-2.0
"""The slots of GLM-5.x: each is a module that the model calls, and its stock twin is that module."""

from __future__ import annotations

from sglang.srt.mega import slots
from sglang.srt.mega.models.glm_moe_dsa.tactics import MAX_ROWS
from sglang.srt.mega.slots import BITWISE, TOLERANCE, Numerics, Slot

PARITY = "test/e2e/mega/test_families.py"

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
            entries=("mla_decode", "mla_merge"),
            default=False,  # not run inside SGLang's CUDA graphs yet
        ),
        Slot(
            "q_norm",
            1,
            MAX_ROWS,
            Numerics(TOLERANCE, test=PARITY, rtol=2**-7),
            stock="self_attn.q_a_layernorm",
            entries=("rms_norm",),
            default=False,  # assembled, not run
        ),
        Slot("moe", 1, MAX_ROWS, Numerics(BITWISE, test=PARITY), stock="layer.mlp"),
    ]
)
