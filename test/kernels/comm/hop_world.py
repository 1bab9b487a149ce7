# SPDX-License-Identifier: Apache-2.0
"""Several ranks in one process: rounds of a hop under a schedule, checked against the reference."""

import torch

from sglang.srt.mega.comm.hop import HopNorm, HopShape
from sglang.srt.mega.comm.mailbox import EMPTY, Mailbox
from sglang.srt.mega.comm.peers import connect_virtual
from sglang.srt.mega.comm.reference import add_norm, all_reduce
from sglang.srt.mega.device.emulator import Schedule, emulator

CPU = torch.device("cpu")
EPSILON = 1e-6
SPECIAL = (0x8000, 0x0000, 0xFFFF, 0x7FFF, 0x7F80, 0xFF80, 0x0001, 0x8001, 0xFFC0)


def shape_of(ranks: int, two_shot: bool, rows: int = 2, hidden: int = 256, **changes) -> HopShape:
    return HopShape(ranks, rows, hidden, EPSILON, two_shot=two_shot, **changes)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.int16)


def payload(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """bf16 values with zeros of both signs, infinities, subnormals and NaNs of either sign among them, and
    whole words of the empty pattern.
    """
    values = torch.randn(*shape, generator=generator).bfloat16()
    special = torch.tensor(SPECIAL, dtype=torch.int32)
    chosen = special[torch.randint(len(special), shape, generator=generator)].to(torch.int16)
    mask = torch.rand(*shape, generator=generator) < 0.02
    words = torch.where(mask, chosen, bits(values))
    pairs = torch.rand(*shape[:-1], shape[-1] // 2, generator=generator) < 0.02
    words = torch.where(pairs.repeat_interleave(2, dim=-1), torch.full_like(words, -1), words)
    return words.view(torch.bfloat16)


class HopWorld:
    """Mailboxes of all ranks, connected; the round counter goes on from call to call."""

    def __init__(self, shape: HopShape, **mutation: int) -> None:
        self.shape = shape
        self.kernel = HopNorm(shape, CPU, **mutation)
        self.mailboxes = [Mailbox(shape.layout, rank, CPU, slot=5) for rank in range(shape.ranks)]
        connect_virtual(self.mailboxes)

    def run(
        self, schedule: Schedule, rounds: int, seed: int, absent: int = -1, special: bool = False
    ) -> None:
        """Runs the rounds of all ranks together (but for an ``absent`` one) and checks every result."""
        shape, generator = self.shape, torch.Generator().manual_seed(seed)
        make = payload if special else lambda g, *s: torch.randn(*s, generator=g).bfloat16()
        weight = torch.randn(shape.hidden, generator=generator).bfloat16()
        steps = []
        with emulator().together(schedule):
            for index in range(rounds):
                rows = 1 + (seed + index) % shape.rows
                partials = [make(generator, rows, shape.hidden) for _ in range(shape.ranks)]
                before = torch.randn(rows, shape.hidden, generator=generator).bfloat16()
                residuals = [before.clone() for _ in range(shape.ranks)]
                outs = [torch.zeros_like(before) for _ in range(shape.ranks)]
                steps.append((partials, before, residuals, outs))
                for rank in range(shape.ranks):
                    if rank == absent:
                        continue
                    with emulator().on_rank(rank):
                        box = self.mailboxes[rank]
                        self.kernel.launch(box, partials[rank], residuals[rank], weight, outs[rank])
        for index, step in enumerate(steps):
            self._check(index, weight, *step)
        for mailbox in self.mailboxes:
            assert (mailbox.inbox == EMPTY).all(), f"rank {mailbox.rank} left cells full"

    def _check(self, index, weight, partials, before, residuals, outs) -> None:
        normed, residual = add_norm(
            all_reduce(partials), before, weight, self.shape.epsilon, self.shape.gemma
        )
        # A failure's first index is the rank.
        where, got_outs, got_residuals = f"round {index}", torch.stack(outs), torch.stack(residuals)
        assert torch.equal(bits(got_outs), bits(got_outs[:1]).expand_as(got_outs)), f"{where}: ranks differ"
        wanted = residual.expand_as(got_residuals)
        _assert_close(got_residuals, wanted, rtol=0, atol=0, where=where)
        _assert_close(
            got_outs[0], normed, rtol=2**-7, atol=1e-6, where=where
        )  # the other ranks' bits are its
        zeros = (wanted == 0) & ~wanted.isnan()
        assert torch.equal(bits(got_residuals)[zeros], bits(wanted)[zeros]), f"{where}: sign of zero"


def _assert_close(got: torch.Tensor, wanted: torch.Tensor, rtol: float, atol: float, where: str) -> None:
    torch.testing.assert_close(
        got, wanted, rtol=rtol, atol=atol, equal_nan=True, msg=lambda text: f"{where}: {text}"
    )
