# SPDX-License-Identifier: Apache-2.0
"""Where GLM-5.x's megakernel runs, and what it binds: sparse attention and the query's norm; the rest is
SGLang's own modules.
"""

from __future__ import annotations

from typing import Any

import torch

from sglang.srt.mega.buffers import everything
from sglang.srt.mega.build import Bound, family_spec
from sglang.srt.mega.executor import DECODE, VERIFY
from sglang.srt.mega.models.glm_moe_dsa.binder import Binder
from sglang.srt.mega.models.glm_moe_dsa.slots import SLOTS
from sglang.srt.mega.models.glm_moe_dsa.tactics import MAX_ROWS
from sglang.srt.mega.parity import STEP, Written
from sglang.srt.mega.view import StepView
from sglang.srt.runtime_context import get_server_args


def model_reasons(model: torch.nn.Module, hf_config: Any) -> list[str]:
    """What only the loaded model shows."""
    layers = getattr(getattr(model, "model", None), "layers", None)
    if layers is None or not all(hasattr(layer.self_attn, "attn_mqa") for layer in layers):
        return [f"{type(model).__name__} has no layers of multi-head latent attention"]
    return []


def bound(model: torch.nn.Module, hf_config: Any) -> Bound:
    """The attention of the loaded layers."""
    device = model.model.embed_tokens.weight.device
    binder = Binder(model.model.layers, get_server_args().kv_cache_dtype, int(hf_config.index_topk), device)
    return Bound(written, binder.unavailable, binder.bind)


def written(slot: str, layer: Any, view: StepView) -> Written:
    """The buffers that a slot, or the whole step, writes."""
    if slot == STEP:
        return everything(kv_pool=view.kv_pool)
    if slot in ("attention", "sparse_mla"):
        return {"keys": (view.kv_pool.get_key_buffer(layer.layer_id), view.out_cache_loc)}
    return {}


SPEC = family_spec(
    name="GLM-5 decode and verify",
    slots=SLOTS,
    max_rows=MAX_ROWS,
    modes=(DECODE, VERIFY),
    tp_sizes=frozenset({1, 2, 4, 8}),
    bound=bound,
    model_reasons=model_reasons,
)
