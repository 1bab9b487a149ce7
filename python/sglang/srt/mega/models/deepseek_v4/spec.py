# SPDX-License-Identifier: Apache-2.0
"""Where DeepSeek-V4.1's megakernel runs, and what it binds: the mHC seam, the rest SGLang's own modules."""

from __future__ import annotations

from typing import Any

import torch

from sglang.srt.mega.buffers import everything
from sglang.srt.mega.build import Bound, family_spec
from sglang.srt.mega.executor import DECODE, VERIFY
from sglang.srt.mega.models.deepseek_v4 import binder
from sglang.srt.mega.models.deepseek_v4.slots import MAX_ROWS, SLOTS
from sglang.srt.mega.parity import STEP, Written
from sglang.srt.mega.plan import Cause, Unavailable
from sglang.srt.mega.slots import Slot
from sglang.srt.mega.view import StepView

SGLANG_READS = {
    "body srt/layers/engram.py::EngramHasher.init_history",
    "body srt/layers/engram.py::EngramHasher.forward",
}


def model_reasons(model: torch.nn.Module, hf_config: Any) -> list[str]:
    """What only the loaded model shows."""
    layers = getattr(getattr(model, "model", None), "layers", None)
    if layers is None or not all(hasattr(layer, "attn_hc") for layer in layers):
        return [f"{type(model).__name__} has no layers with hyper-connections"]
    return []


def bound(model: torch.nn.Module, hf_config: Any) -> Bound:
    """The seams of the loaded layers."""
    layers, device = model.model.layers, model.model.embed_tokens.weight.device
    for layer in layers:  # a seam is known by the norm that it leads to; parity names its layer
        for hc in (layer.attn_hc, layer.ffn_hc):
            if hc is not None:
                hc.norm.layer_id = layer.layer_id

    def unavailable(slot: Slot) -> Unavailable | None:
        reason = binder.refusal(layers)
        return None if reason is None else Unavailable(Cause.WEIGHTS, reason, "the stock step runs it")

    def written(slot: str, layer: Any, view: StepView) -> Written:
        """The buffers that a slot, or the whole step, writes. A decode step commits its tokens to Engram's
        history before the layers.
        """
        if slot == STEP:
            hasher = model.model.engram_hasher
            history = None if hasher is None else hasher.history
            return everything(kv_pool=view.kv_pool, engram_history=history)
        return everything(kv_pool=view.kv_pool) if slot == "attention" else {}

    return Bound(written, unavailable, lambda slots: binder.bind_mhc(layers, device))


SPEC = family_spec(
    name="DeepSeek-V4.1 decode and verify",
    slots=SLOTS,
    max_rows=MAX_ROWS,
    modes=(DECODE, VERIFY),
    tp_sizes=frozenset({1, 2, 4, 8}),
    bound=bound,
    model_reasons=model_reasons,
)
