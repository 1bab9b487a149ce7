# SPDX-License-Identifier: Apache-2.0
"""Plan, bind, execute: what the specs of all families build in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sglang.kernels.plugin_kernels.nvidia.spec import BuildContext
from sglang.srt.environ import envs
from sglang.srt.mega.executor import Executor
from sglang.srt.mega.parity import Written
from sglang.srt.mega.plan import Cause, Unavailable, agree, make_plan
from sglang.srt.mega.slots import Slot, SlotListError, select
from sglang.srt.mega.step import Kernel
from sglang.srt.runtime_context import get_parallel

Bind = Callable[[str], Mapping[tuple[str, int], Kernel]]
NO_KERNEL = Unavailable(Cause.DEVICE, "this tree has no kernel for it", "the stock step runs it")


def slot_list_reasons(slots: Mapping[str, Slot]) -> list[str]:
    """Why the slot list that the server was given cannot be read."""
    try:
        select(slots, envs.SGLANG_NVIDIA_MEGAKERNEL_SLOTS.get())
    except SlotListError as error:
        return [str(error)]
    return []


def no_kernel_reasons(slots: Mapping[str, Slot], kernels: frozenset[str]) -> list[str]:
    """An all-stock plan that nobody asked for: no slot list was given and no default slot has a kernel."""
    wanted = envs.SGLANG_NVIDIA_MEGAKERNEL_SLOTS.get()
    default = {slot.name for slot in slots.values() if slot.default}
    if wanted is not None or envs.SGLANG_MEGAKERNEL_PARITY.get() or default & kernels:
        return []
    listed = ", ".join(sorted(kernels)) or "none yet"
    return [f"its default plan is SGLang's own modules alone; slots with a kernel, by SLOTS: {listed}"]


def parity_reasons(cfg: Any) -> list[str]:
    """Why parity mode cannot run here."""
    if envs.SGLANG_MEGAKERNEL_PARITY.get() and cfg.cuda_graph_config.decode.backend != "disabled":
        return ["SGLANG_MEGAKERNEL_PARITY compares eager steps; pass --cuda-graph-backend-decode disabled"]
    return []


def assemble(
    name: str,
    slots: Mapping[str, Slot],
    context: BuildContext,
    unavailable: Callable[[Slot], Unavailable | None],
    bind: Bind,
    modes: Iterable[str],
    written: Callable[[str, Any, Any], Written],
) -> Executor:
    """The executor of a family. ``bind(slot)`` makes a slot's kernels, one a layer, for slots that the plan
    runs as kernels at some width.
    """
    selection = select(slots, envs.SGLANG_NVIDIA_MEGAKERNEL_SLOTS.get())
    plan = make_plan(slots, selection, context.widths, unavailable)
    agree(plan, name)
    wanted = {slot for rows in plan.widths for slot in plan.kernels(rows)}
    kernels = {key: kernel for slot in sorted(wanted) for key, kernel in bind(slot).items()}
    return Executor(
        name=name,
        slots=slots,
        plan=plan,
        kernels=kernels,
        modes=frozenset(modes),
        written=written,
        parity_rank=get_parallel().tp_rank if envs.SGLANG_MEGAKERNEL_PARITY.get() else None,
    )
