# SPDX-License-Identifier: Apache-2.0
"""How long a kernel waits for a peer, and what it leaves behind when the wait has no end.

The deadline is a constant of the compiled kernel. A rank that waits longer writes a record to pinned host
memory and then faults at address 0x0, so that no result of a broken step is returned.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch

LONGEST_MS = 20_000
SHORTEST_WATCHDOG_S = 40.0
PHASES = {1: "partial sums", 2: "returned rows"}


def deadline_ms(watchdog_seconds: float) -> int:
    """The deadline for a server whose watchdog bites after so many seconds: half of it, at most 20 s.

    Raises ValueError below 40 s: a peer may be late by seconds for good reasons, and the kernel's report must
    come before the watchdog's kill.
    """
    if watchdog_seconds < SHORTEST_WATCHDOG_S:
        raise ValueError(
            f"a watchdog of {watchdog_seconds:g} s leaves kernels no time to wait for a peer: "
            f"set --watchdog-timeout to {SHORTEST_WATCHDOG_S:g} or more"
        )
    return min(LONGEST_MS, int(watchdog_seconds * 500))


@dataclass(frozen=True)
class FaultRecord:
    """What a kernel wrote before it faulted: ``rank`` waited for ``peer`` in exchange ``counter`` of mailbox
    ``slot``, for the cell of ``row``, longer than ``deadline_ms``. Field order is that of the device struct.
    """

    written: int
    rank: int
    peer: int
    slot: int
    phase: int
    counter: int
    row: int
    deadline_ms: int

    def __str__(self) -> str:
        return (
            f"rank {self.rank} waited more than {self.deadline_ms} ms for rank {self.peer}: mailbox slot "
            f"{self.slot}, phase {self.phase} ({PHASES.get(self.phase, 'unknown')}), counter {self.counter}, "
            f"row {self.row}"
        )


WORDS = len(fields(FaultRecord))


def new_record(device: torch.device) -> torch.Tensor:
    """[8] int32 of host memory that a kernel on ``device`` can write, zero."""
    return torch.zeros(WORDS, dtype=torch.int32, pin_memory=device.type == "cuda")


def read_record(record: torch.Tensor) -> FaultRecord | None:
    """The record, or ``None`` when no kernel has faulted. Works after the CUDA context is lost."""
    values = record.tolist()
    return FaultRecord(*values) if values[0] else None
