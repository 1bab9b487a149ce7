# SPDX-License-Identifier: Apache-2.0
"""The memory of a Lamport mailbox. The protocol is in sgl-kernel/csrc/mega/common/mailbox.cuh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sglang.srt.mega.comm.deadline import FaultRecord, new_record, read_record

MAX_RANKS = 8
DEPTH = 3
CELL_BYTES = 16
EMPTY = -1  # every 32-bit word of an empty cell
STATE_WORDS = 4


@dataclass(frozen=True)
class MailboxLayout:
    """The shape of one rank's inbox: ``rows`` rows of ``hidden`` bf16 values from each of ``ranks`` ranks.

    ``two_shot``: partial rows arrive at their owner alone (row t at rank t mod ranks) and sums come back.
    """

    ranks: int
    rows: int
    hidden: int
    two_shot: bool = False

    def __post_init__(self) -> None:
        if not 2 <= self.ranks <= MAX_RANKS:
            raise ValueError(f"a mailbox joins 2 to {MAX_RANKS} ranks, not {self.ranks}")
        if self.rows < 1 or self.hidden % 256 or not 256 <= self.hidden <= 8192:
            raise ValueError(
                f"no mailbox for {self.rows} rows of {self.hidden}: 256 to 8192, a multiple of 256"
            )

    @property
    def owned_rows(self) -> int:
        """The most rows that one rank sums in a two-shot exchange."""
        return -(-self.rows // self.ranks)

    @property
    def inbox_bytes(self) -> int:
        cells_a_row = self.hidden * 2 // CELL_BYTES
        rows = self.ranks * self.owned_rows + self.rows if self.two_shot else self.ranks * self.rows
        return DEPTH * rows * cells_a_row * CELL_BYTES


class Mailbox:
    """One rank's end: an inbox that peers write, the round counter, and a fault record in host memory.

    ``slot`` numbers the mailbox in fault records. ``inbox`` may be given, for memory that other processes can
    map; it must have ``layout.inbox_bytes`` bytes, aligned to 16.
    """

    def __init__(
        self,
        layout: MailboxLayout,
        rank: int,
        device: torch.device,
        slot: int = 0,
        inbox: torch.Tensor | None = None,
    ) -> None:
        if not 0 <= rank < layout.ranks:
            raise ValueError(f"rank {rank} is not one of {layout.ranks}")
        if inbox is None:
            inbox = torch.empty(layout.inbox_bytes // 4, dtype=torch.int32, device=device)
        if inbox.numel() * inbox.element_size() < layout.inbox_bytes or inbox.data_ptr() % CELL_BYTES:
            raise ValueError(f"an inbox needs {layout.inbox_bytes} bytes, aligned to {CELL_BYTES}")
        self.layout = layout
        self.rank = rank
        self.slot = slot
        self.device = device
        self.inbox = inbox.view(torch.int32).fill_(EMPTY)
        self.state = torch.zeros(STATE_WORDS, dtype=torch.int32, device=device)
        self.record = new_record(device)
        self._descriptor: torch.Tensor | None = None

    def connect(self, inboxes: Sequence[int]) -> None:
        """Takes the address of every rank's inbox as this process maps it, own included, in rank order.

        Every rank's inbox must have been emptied (constructed) before any rank launches.
        """
        if len(inboxes) != self.layout.ranks:
            raise ValueError(f"{self.layout.ranks} inboxes are to be connected, {len(inboxes)} were given")
        if inboxes[self.rank] != self.inbox.data_ptr():
            raise ValueError(f"entry {self.rank} is not this rank's own inbox")
        words = [*inboxes, *[0] * (MAX_RANKS - len(inboxes)), self.record.data_ptr(), self.state.data_ptr()]
        words.append(self.rank | self.slot << 32)
        self._descriptor = torch.tensor(words, dtype=torch.int64, device=self.device)

    @property
    def descriptor(self) -> torch.Tensor:
        """``struct Mailbox`` in device memory, as kernels take it."""
        if self._descriptor is None:
            raise RuntimeError("the mailbox is not connected to its peers: call connect first")
        return self._descriptor

    @property
    def fault(self) -> FaultRecord | None:
        """What a kernel of this rank wrote before it faulted, if one did."""
        return read_record(self.record)
