# SPDX-License-Identifier: Apache-2.0
"""Where DeepSeek-V4.1's megakernel runs, and its build: the mHC seam, the rest SGLang's own modules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from sglang.kernels.plugin_kernels.nvidia.spec import (
    BuildContext,
    Feature,
    MegakernelSpec,
    Numerics,
    NumericsKind,
    Requirements,
)
from sglang.srt.mega import build as common
from sglang.srt.mega import host
from sglang.srt.mega.buffers import everything
from sglang.srt.mega.executor import DECODE, VERIFY, Executor
from sglang.srt.mega.models.deepseek_v4 import binder
from sglang.srt.mega.models.deepseek_v4.slots import KERNELS, MAX_ROWS, SLOTS, without_weights
from sglang.srt.mega.parity import STEP, Written
from sglang.srt.mega.plan import Cause, Unavailable
from sglang.srt.mega.slots import TOLERANCE, Slot
from sglang.srt.mega.step import Kernel
from sglang.srt.mega.view import StepView


def config_disable_reasons(cfg: Any, hf_config: Any) -> list[str]:
    """What the requirements cannot state."""
    reasons = common.slot_list_reasons(SLOTS) + common.parity_reasons(cfg)
    return reasons + common.no_kernel_reasons(SLOTS, KERNELS)


def model_disable_reasons(model: torch.nn.Module, hf_config: Any) -> list[str]:
    """What only the loaded model shows."""
    layers = getattr(getattr(model, "model", None), "layers", None)
    if layers is None or not all(hasattr(layer, "attn_hc") for layer in layers):
        return [f"{type(model).__name__} has no layers with hyper-connections"]
    return []


def build(model: torch.nn.Module, hf_config: Any, context: BuildContext) -> Executor:
    """Plan the slots, bind the kernel, and hand both to the executor."""
    layers, device = model.model.layers, model.model.embed_tokens.weight.device
    for layer in layers:  # a seam is known by the norm that it leads to; parity names its layer
        for hc in (layer.attn_hc, layer.ffn_hc):
            if hc is not None:
                hc.norm.layer_id = layer.layer_id

    def unavailable(slot: Slot) -> Unavailable | None:
        why = without_weights(slot)
        if why is None and (reason := binder.refusal(layers)) is not None:
            why = Unavailable(Cause.WEIGHTS, reason, "the stock step runs it")
        return why

    def bind(slot: str) -> Mapping[tuple[str, int], Kernel]:
        return binder.bind_mhc(layers, device)

    return common.assemble(SPEC.name, SLOTS, context, unavailable, bind, (DECODE, VERIFY), written)


def written(slot: str, layer: Any, view: StepView) -> Written:
    """The buffers that a slot, or the whole step, writes."""
    return everything(kv_pool=view.kv_pool) if slot in (STEP, "attention") else {}


SPEC = MegakernelSpec(
    name="DeepSeek-V4.1 decode and verify",
    requires=Requirements(
        isas=frozenset({"sm_90", host.EMULATED}),
        tp_sizes=frozenset({1, 2, 4, 8}),
        dtypes=frozenset({"bfloat16"}),
    ),
    features=frozenset({Feature.SPECULATIVE_DECODING}),
    numerics=Numerics(
        NumericsKind.TOLERANCE,
        {name: s.numerics.rtol for name, s in SLOTS.items() if s.numerics.kind == TOLERANCE},
    ),
    max_rows=MAX_ROWS,
    build=build,
    api_version=2,
    model_disable_reasons=model_disable_reasons,
    config_disable_reasons=config_disable_reasons,
)
