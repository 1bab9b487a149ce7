# SPDX-License-Identifier: Apache-2.0
"""The frame of every family's spec: where it runs, and its build, which plans, agrees, binds and executes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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
from sglang.srt.environ import envs
from sglang.srt.mega.executor import VERIFY, Executor
from sglang.srt.mega.in_tree import ISAS
from sglang.srt.mega.parity import Chooser, Written
from sglang.srt.mega.plan import Unavailable, agree, make_plan
from sglang.srt.mega.slots import TOLERANCE, Slot, SlotListError, select
from sglang.srt.mega.step import Kernel
from sglang.srt.runtime_context import get_parallel


@dataclass(frozen=True)
class Bound:
    """A loaded model as its family's kernels see it.

    ``unavailable``: why this model leaves a slot without its kernel, or None. ``bind``: the kernels of the
    slots that a plan runs, by slot and id of the layer module; nothing is compiled or allocated before it is
    called. ``written(slot, layer, view)`` names the buffers that a slot, or the whole step, writes;
    ``choosers``: how parity sees what a choosing slot chose, filled by ``bind``.
    """

    written: Callable[[str, Any, Any], Written]
    unavailable: Callable[[Slot], Unavailable | None] = lambda slot: None
    bind: Callable[[frozenset[str]], Mapping[tuple[str, int], Kernel]] = lambda slots: {}
    choosers: Mapping[str, Chooser] = field(default_factory=dict)


def family_spec(
    *,
    name: str,
    slots: Mapping[str, Slot],
    max_rows: int,
    modes: tuple[str, ...],
    tp_sizes: frozenset[int],
    bound: Callable[[torch.nn.Module, Any], Bound],
    config_reasons: Callable[[Any, Any], list[str]] = lambda cfg, hf_config: [],
    model_reasons: Callable[[torch.nn.Module, Any], list[str]] = lambda model, hf_config: [],
) -> MegakernelSpec:
    """The spec of a family that serves BF16 activations.

    ``bound`` prepares a loaded model. ``config_reasons`` and ``model_reasons`` are the family's own reasons
    against it, before and after the weights are loaded.
    """

    def config_disable_reasons(cfg: Any, hf_config: Any) -> list[str]:
        return [*_slot_reasons(slots), *_parity_reasons(cfg), *config_reasons(cfg, hf_config)]

    def build(model: torch.nn.Module, hf_config: Any, context: BuildContext) -> Executor:
        prepared = bound(model, hf_config)
        selection = select(slots, envs.SGLANG_NVIDIA_MEGAKERNEL_SLOTS.get())
        plan = make_plan(slots, selection, context.widths, prepared.unavailable)
        agree(plan, name)
        wanted = frozenset(slot for rows in plan.widths for slot in plan.kernels(rows))
        return Executor(
            name=name,
            slots=slots,
            plan=plan,
            kernels=prepared.bind(wanted) if wanted else {},
            modes=frozenset(modes),
            written=prepared.written,
            choosers=prepared.choosers,
            parity_rank=get_parallel().tp_rank if envs.SGLANG_MEGAKERNEL_PARITY.get() else None,
        )

    tolerances = {s.name: s.numerics.rtol for s in slots.values() if s.numerics.kind == TOLERANCE}
    return MegakernelSpec(
        name=name,
        requires=Requirements(isas=ISAS, tp_sizes=tp_sizes, dtypes=frozenset({"bfloat16"})),
        features=frozenset({Feature.SPECULATIVE_DECODING} if VERIFY in modes else ()),
        numerics=Numerics(NumericsKind.TOLERANCE if tolerances else NumericsKind.BITWISE, tolerances),
        max_rows=max_rows,
        build=build,
        api_version=2,
        model_disable_reasons=model_reasons,
        config_disable_reasons=config_disable_reasons,
    )


def _slot_reasons(slots: Mapping[str, Slot]) -> list[str]:
    """Why the slot list cannot be read; or an all-stock plan that nobody asked for: no list was given and no
    default slot has a kernel.
    """
    wanted = envs.SGLANG_NVIDIA_MEGAKERNEL_SLOTS.get()
    try:
        select(slots, wanted)
    except SlotListError as error:
        return [str(error)]
    with_kernel = {slot.name for slot in slots.values() if slot.kernel}
    default = {slot.name for slot in slots.values() if slot.default}
    if wanted is not None or envs.SGLANG_MEGAKERNEL_PARITY.get() or default & with_kernel:
        return []
    listed = ", ".join(sorted(with_kernel)) or "none yet"
    return [f"its default plan is SGLang's own modules alone; slots with a kernel, by SLOTS: {listed}"]


def _parity_reasons(cfg: Any) -> list[str]:
    """Why parity mode cannot run here."""
    if envs.SGLANG_MEGAKERNEL_PARITY.get() and cfg.cuda_graph_config.decode.backend != "disabled":
        return ["SGLANG_MEGAKERNEL_PARITY compares eager steps; pass --cuda-graph-backend-decode disabled"]
    return []
