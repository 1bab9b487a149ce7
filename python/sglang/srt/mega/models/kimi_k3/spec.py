# SPDX-License-Identifier: Apache-2.0
"""Where Kimi K3's megakernel runs: a plan of SGLang's own modules alone."""

from __future__ import annotations

from typing import Any

from sglang.srt.mega.buffers import everything
from sglang.srt.mega.build import Bound, family_spec
from sglang.srt.mega.executor import DECODE
from sglang.srt.mega.models.kimi_k3.slots import MAX_ROWS, SLOTS
from sglang.srt.mega.parity import STEP, Written
from sglang.srt.mega.view import StepView


def written(slot: str, layer: Any, view: StepView) -> Written:
    """The buffers that a slot, or the whole step, writes."""
    if slot == "mla":
        return {"keys": (view.kv_pool.get_key_buffer(layer.layer_idx), view.out_cache_loc)}
    if slot == "kda":
        cache = view.recurrent.pool.mamba2_layer_cache(layer.layer_idx)
        rows = view.recurrent.slots[view.recurrent.slots >= 0].long()
        conv = {f"convolution state {i}": (state, rows) for i, state in enumerate(cache.conv)}
        return {**conv, "recurrent state": (cache.temporal, rows)}
    if slot == STEP:
        return everything(kv_pool=view.kv_pool, states=view.recurrent.pool)
    return {}


SPEC = family_spec(
    name="Kimi K3 decode",
    slots=SLOTS,
    max_rows=MAX_ROWS,
    modes=(DECODE,),
    tp_sizes=frozenset({1, 2, 4, 8}),
    bound=lambda model, hf_config: Bound(written),
)
