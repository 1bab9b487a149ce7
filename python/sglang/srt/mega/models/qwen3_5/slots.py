# SPDX-License-Identifier: Apache-2.0
"""The slots of Qwen3.5's plain decode step. Each is one stage of a layer, from residual stream to residual
stream.
"""

from __future__ import annotations

from typing import Any

from sglang.srt.mega import slots
from sglang.srt.mega.slots import TOLERANCE, Numerics, Slot

MAX_ROWS = 8


def mixer_slot(layer: Any) -> str:
    """The slot of a layer's first stage."""
    return "gdn" if hasattr(layer, "linear_attn") else "attention"


PARITY = "test/e2e/mega/test_qwen3_5_step.py"

SLOTS = slots.table(
    [
        Slot(
            "gdn",
            1,
            MAX_ROWS,
            Numerics(TOLERANCE, test=PARITY, rtol=2**-6),
            stock="stages.gated_delta_net",
            reads=("convolution state", "recurrent state"),
            writes=("convolution state", "recurrent state"),
            entries=("stream_entry", "gdn_front", "gdn_step", "gdn_out"),
        ),
        Slot(
            "attention",
            1,
            MAX_ROWS,
            Numerics(TOLERANCE, test=PARITY, rtol=2**-6),
            stock="stages.attention",
            reads=("KV cache", "request table"),
            writes=("KV cache",),
            entries=("stream_entry", "attn_front", "attn_decode", "attn_merge", "attn_out"),
        ),
        Slot(
            "moe",
            1,
            MAX_ROWS,
            # Router logits are BF16: where the last chosen expert and the next lie a rounding or two
            # apart, kernel and stock may choose differently (on an H200, random weights, 512 experts: 19
            # of 720 rows, the widest 5.4e-3 of the row's largest logit apart).
            Numerics(TOLERANCE, test=PARITY, rtol=2**-6, ties=2**-7),
            stock="stages.moe",
            entries=("stream_entry", "moe_route", "moe_up", "moe_down"),
            weights="w13 and w2 as the unquantised fused MoE holds them",
        ),
    ]
)
