# SPDX-License-Identifier: Apache-2.0
"""What stock SGLang is given on Hopper, family by family: verify widths, KV cache and its best backends, and
the slots that have a kernel there.

A baseline is only worth beating at its best, and the reader must know what it ran: each ``note`` goes into
the result's line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Baseline:
    """``width`` is the rows a request in a verify step (0: the family serves no verify), ``context`` the
    tokens before the step, ``slots`` every slot with a kernel, opt-in ones too (empty: none)."""

    width: int
    kv: str
    context: int
    weights: str
    server_args: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    slots: str = ""


BASELINES = {
    "qwen3_5": Baseline(width=7, kv="bf16", context=1024, weights="bf16", slots="gdn,attention,moe"),
    # 4096 tokens, so that 2048 are selected.
    "glm_moe_dsa": Baseline(
        width=4,
        kv="fp8_e4m3",
        context=4096,
        weights="bf16",
        note="attention by FlashMLA on an FP8 KV cache",
        slots="sparse_mla",
    ),
    # 4096 tokens, so that 512 are selected.
    "deepseek_v41": Baseline(
        width=6,
        kv="fp8_e4m3",
        context=4096,
        weights="mxfp4",
        server_args={"moe_runner_backend": "marlin"},
        note=(
            "experts by Marlin: FlashInfer's kernels need a multiple of 128 rows an expert, a rank has 576; "
            "Engram tables on the card and 64 times smaller than the checkpoint's"
        ),
        slots="mhc",
    ),
    "kimi_k3": Baseline(
        width=0,
        kv="bf16",
        context=1024,
        weights="mxfp4",
        server_args={"moe_runner_backend": "marlin", "attention_backend": "triton"},
        note="experts by Marlin: on SM90 auto would unpack them to BF16; MLA by Triton",
    ),
}
FALLBACK = Baseline(width=4, kv="bf16", context=1024, weights="bf16")


def baseline(family: str) -> Baseline:
    return BASELINES.get(family, FALLBACK)
