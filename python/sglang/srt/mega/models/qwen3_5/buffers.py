# SPDX-License-Identifier: Apache-2.0
"""The buffers that each slot writes beside its result, for parity's snapshots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang.srt.mega.models.qwen3_5.slots import mixer_slot
from sglang.srt.mega.parity import STEP, Written
from sglang.srt.mega.view import StepView

SGLANG_READS = {"sig srt/mem_cache/memory_pool.py::HybridReqToTokenPool.mamba2_layer_cache"}


def written_by(backbone: Any) -> Callable[[str, Any, StepView], Written]:
    """``written`` of this backbone, which also answers for the whole step: every layer's buffers."""

    def answer(slot: str, layer: Any, view: StepView) -> Written:
        if slot != STEP:
            return written(slot, layer, view)
        every = {}
        for each in backbone.layers:
            for name, place in written(mixer_slot(each), each, view).items():
                every[f"layer {each.layer_id} {name}"] = place
        return every

    return answer


def written(slot: str, layer: Any, view: StepView) -> Written:
    """Name -> (buffer, rows) of what ``layer``'s ``slot`` writes in this step."""
    if slot == "gdn":
        cache = view.recurrent.pool.mamba2_layer_cache(layer.layer_id)
        rows = view.recurrent.slots[view.recurrent.slots >= 0].long()
        return {"convolution state": (cache.conv[0], rows), "recurrent state": (cache.temporal, rows)}
    if slot == "attention":
        keys, values = view.kv_pool.get_kv_buffer(layer.layer_id)
        return {"keys": (keys, view.out_cache_loc), "values": (values, view.out_cache_loc)}
    return {}
