# SPDX-License-Identifier: Apache-2.0
"""A layer boundary in one launch: all-reduce of the ranks' partial sums, residual add, RMSNorm."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sglang.srt.mega.comm.deadline import LONGEST_MS
from sglang.srt.mega.comm.mailbox import Mailbox, MailboxLayout
from sglang.srt.mega.device.kernel import load_kernel
from sglang.srt.mega.device.spec import KernelSpec, LaunchConfig


@dataclass(frozen=True)
class HopShape:
    """``rows``: the most rows a launch has. ``gemma``: the norm's form (``reference.add_norm``).

    ``two_shot`` sends less for many rows and takes two exchanges. ``blocks``: the most blocks of a two-shot
    launch, which must all be resident at once.
    """

    ranks: int
    rows: int
    hidden: int
    epsilon: float
    gemma: bool = False
    two_shot: bool = False
    deadline_ms: int = LONGEST_MS
    blocks: int = 64

    @property
    def layout(self) -> MailboxLayout:
        return MailboxLayout(self.ranks, self.rows, self.hidden, self.two_shot)

    def spec(self, **changes: int) -> KernelSpec:
        """The kernel; ``changes`` are further constants."""
        name = "two_shot_norm" if self.two_shot else "one_shot_norm"
        constants = {
            "RANKS": self.ranks,
            "ROWS": self.rows,
            "HIDDEN": self.hidden,
            "EPSILON": float(self.epsilon),
            "GEMMA": int(self.gemma),
            "DEADLINE_MS": self.deadline_ms,
        }
        return KernelSpec.of(f"{name}.cuh", name, {**constants, **changes})


class HopNorm:
    """The loaded kernel of one shape. Made at load time; ``launch`` compiles and allocates nothing."""

    def __init__(self, shape: HopShape, device: torch.device, **changes: int) -> None:
        self.shape = shape
        self._kernel = load_kernel(shape.spec(**changes), device)

    def launch(
        self,
        mailbox: Mailbox,
        partial: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        out: torch.Tensor,
        pdl: bool = True,
    ) -> None:
        """All bf16: ``partial`` [rows, hidden] is this rank's; ``residual`` [rows, hidden] is updated in
        place; ``out`` [rows, hidden] is the normed row, the same on every rank. Every rank launches the same
        rows in the same order; all blocks of the launch must be able to run at once.
        """
        rows = partial.shape[0]
        if not 1 <= rows <= self.shape.rows:
            raise ValueError(f"a hop of up to {self.shape.rows} rows cannot take {rows}")
        if mailbox.layout != self.shape.layout:
            raise ValueError(
                f"the mailbox is laid out for {mailbox.layout}, the kernel for {self.shape.layout}"
            )
        for name, tensor, shape in (
            ("partial", partial, (rows, self.shape.hidden)),
            ("residual", residual, (rows, self.shape.hidden)),
            ("weight", weight, (self.shape.hidden,)),
            ("out", out, (rows, self.shape.hidden)),
        ):
            if tuple(tensor.shape) != shape or tensor.dtype != torch.bfloat16 or not tensor.is_contiguous():
                raise ValueError(
                    f"{name} must be contiguous bf16 {shape}, not {tensor.dtype} {tuple(tensor.shape)}"
                )
        blocks = min(rows, self.shape.blocks) if self.shape.two_shot else rows
        config = LaunchConfig((blocks, 1, 1), self.shape.hidden // 8, pdl=pdl)
        arguments = [mailbox.descriptor, partial, residual, weight, out]
        if self.shape.two_shot:
            arguments.append(rows)
        self._kernel.launch(config, *arguments)
