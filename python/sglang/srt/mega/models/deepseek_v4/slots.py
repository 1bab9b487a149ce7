# SPDX-License-Identifier: Apache-2.0
"""The slots of DeepSeek-V4.1."""

from __future__ import annotations

from sglang.srt.mega import slots
from sglang.srt.mega.slots import BITWISE, TOLERANCE, Numerics, Slot

MAX_ROWS = 48  # eight requests of DSpark's six tokens
PARITY = "test/e2e/mega/test_families.py"

SLOTS = slots.table(
    [
        Slot(
            "attention",
            1,
            MAX_ROWS,
            Numerics(BITWISE, test=PARITY),
            stock="layer.self_attn",
            reads=("KV caches", "compressor states"),
            writes=("KV caches", "compressor states"),
        ),
        # Streams and norm are rounded to bf16 where the stock kernels round; sums differ in their order.
        Slot(
            "mhc",
            1,
            MAX_ROWS,
            Numerics(TOLERANCE, test=PARITY, rtol=2**-7),
            stock="stages.stock_seam",
            entries=("mhc_post", "mhc_finish"),
            default=False,  # not run inside SGLang's CUDA graphs yet
        ),
        Slot("moe", 1, MAX_ROWS, Numerics(BITWISE, test=PARITY), stock="layer.mlp"),
    ]
)
