# SPDX-License-Identifier: Apache-2.0
"""Where Kimi K3's megakernel runs, and its build: a plan of SGLang's own modules alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from sglang.kernels.plugin_kernels.nvidia.spec import (
    BuildContext,
    MegakernelSpec,
    Numerics,
    NumericsKind,
    Requirements,
)
from sglang.srt.mega import build as common
from sglang.srt.mega import host
from sglang.srt.mega.buffers import everything
from sglang.srt.mega.executor import DECODE, Executor
from sglang.srt.mega.models.kimi_k3.slots import MAX_ROWS, SLOTS, without_weights
from sglang.srt.mega.parity import STEP, Written
from sglang.srt.mega.step import Kernel
from sglang.srt.mega.view import StepView


def config_disable_reasons(cfg: Any, hf_config: Any) -> list[str]:
    """What the requirements cannot state."""
    reasons = common.slot_list_reasons(SLOTS) + common.parity_reasons(cfg)
    return reasons + common.no_kernel_reasons(SLOTS, frozenset())


def bind(slot: str) -> Mapping[tuple[str, int], Kernel]:
    """No slot has a kernel, so the plan asks for none."""
    raise LookupError(slot)


def build(model: torch.nn.Module, hf_config: Any, context: BuildContext) -> Executor:
    """Plan the slots and hand the plan to the executor."""
    return common.assemble(SPEC.name, SLOTS, context, without_weights, bind, (DECODE,), written)


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


SPEC = MegakernelSpec(
    name="Kimi K3 decode",
    requires=Requirements(
        isas=frozenset({"sm_90", host.EMULATED}),
        tp_sizes=frozenset({1, 2, 4, 8}),
        dtypes=frozenset({"bfloat16"}),
    ),
    features=frozenset(),
    numerics=Numerics(NumericsKind.BITWISE),
    max_rows=MAX_ROWS,
    build=build,
    api_version=2,
    config_disable_reasons=config_disable_reasons,
)
