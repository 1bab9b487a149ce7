# SPDX-License-Identifier: Apache-2.0
"""The slots of Kimi K3. None has a kernel in this tree: its plan is SGLang's own modules."""

from __future__ import annotations

from sglang.srt.mega import slots
from sglang.srt.mega.slots import BITWISE, Numerics, Slot

MAX_ROWS = 64
PARITY = "test/e2e/mega/test_families.py"

SLOTS = slots.table(
    [
        Slot(
            "kda",
            1,
            MAX_ROWS,
            Numerics(BITWISE, test=PARITY),
            stock="layer.self_attn",
            reads=("convolution state", "recurrent state"),
            writes=("convolution state", "recurrent state"),
        ),
        Slot(
            "mla",
            1,
            MAX_ROWS,
            Numerics(BITWISE, test=PARITY),
            stock="layer.self_attn",
            reads=("KV cache", "request table"),
            writes=("KV cache",),
        ),
        Slot("moe", 1, MAX_ROWS, Numerics(BITWISE, test=PARITY), stock="layer.mlp"),
    ]
)
