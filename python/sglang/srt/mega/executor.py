# SPDX-License-Identifier: Apache-2.0
"""The object that SGLang's binding installs: a model's plan, its bound kernels and the dispatch of covered
steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sglang.kernels.plugin_kernels.nvidia.spec import Step
from sglang.srt.mega.parity import Chooser, ParityRunner, Written
from sglang.srt.mega.plan import Plan
from sglang.srt.mega.slots import Slot
from sglang.srt.mega.step import ActiveStep, Kernel, activate, run_kernel
from sglang.srt.mega.view import view_of

DECODE, VERIFY = "decode", "target_verify"


class Executor:
    """A ``BuiltMegakernel`` (API version 2) made of slots.

    A covered step runs the model's own forward with the step active, so every part that no kernel replaces is
    SGLang's code. ``kernels`` maps (slot, id of layer module) to the kernel bound to that layer. ``modes``
    are the forward modes it covers. ``written`` names the buffers that a slot writes and ``choosers`` shows
    what a choosing slot's arms chose, for parity.
    """

    draft_sampler = None
    draft_loop = None
    draft_extend = None
    begin_draft_round = None
    graph_variants = None
    speculative_runtime_hooks = None

    def __init__(
        self,
        *,
        name: str,
        slots: Mapping[str, Slot],
        plan: Plan,
        kernels: Mapping[tuple[str, int], Kernel],
        modes: frozenset[str],
        written: Callable[[str, Any, Any], Written] = lambda slot, layer, view: {},
        parity_rank: int | None = None,
        choosers: Mapping[str, Chooser] | None = None,
    ) -> None:
        self.name = name
        self.slots = slots
        self.step_plan = plan
        self.widths = plan.widths
        self.modes = modes
        self.kernels_by_width = {
            rows: {key: k for key, k in kernels.items() if key[0] in plan.kernels(rows)}
            for rows in plan.widths
        }
        self.parity = (
            None if parity_rank is None else ParityRunner(slots, written, parity_rank, choosers or {})
        )

    def summary(self) -> str:
        """What runs: the kernels of the widest and of the narrowest step."""
        narrow, wide = self.widths[0], self.widths[-1]
        text = f"{narrow} rows: {_names(self.step_plan, narrow)}"
        return text if wide == narrow else f"{text}; {wide} rows: {_names(self.step_plan, wide)}"

    def plan(self, input_ids: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Step | None:
        """The step to run, from the forward mode and the row count alone, so that every rank decides the
        same.
        """
        mode = forward_batch.forward_mode
        name = VERIFY if mode.is_target_verify() else DECODE if mode.is_decode() else None
        rows = 0 if input_ids is None else int(input_ids.shape[0])
        if name not in self.modes or rows not in self.kernels_by_width:
            return None
        return Step(mode=name, rows=rows)

    def forward(self, step: Step, original: Callable, *args: Any, **kwargs: Any) -> Any:
        """Run the model's forward (``input_ids, positions, forward_batch, ...``) with the step active."""
        _, positions, forward_batch = args[:3]
        runner = run_kernel if self.parity is None else self.parity
        active = ActiveStep(view_of(positions, forward_batch), self.kernels_by_width[step.rows], runner)

        def covered(*args: Any, **kwargs: Any) -> Any:
            with activate(active):
                return original(*args, **kwargs)

        if self.parity is None:
            return covered(*args, **kwargs)
        return self.parity.compare_step(active, covered, original, args, kwargs)


def _names(plan: Plan, rows: int) -> str:
    return ", ".join(sorted(plan.kernels(rows))) or "stock"
