# SPDX-License-Identifier: Apache-2.0
"""Slots: the replaceable pieces of a decode or verify step, and the list that selects them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

BITWISE = "bitwise"
TOLERANCE = "tolerance"


@dataclass(frozen=True)
class Numerics:
    """A slot's declared agreement with its stock twin on the same inputs.

    ``kind`` is ``BITWISE`` or ``TOLERANCE``. ``rtol`` bounds ``max |kernel - stock| / max |stock|`` of each
    written tensor; ``test`` names the test that measured it. A bitwise slot has no ``rtol``. ``ties`` is for
    a slot that chooses (experts by router logits): a row in which kernel and stock choose differently is no
    difference when the scores they disagree about lie within ``ties`` of the row's largest score, in both
    arms; ``rtol`` then holds for the other rows.
    """

    kind: str
    test: str
    rtol: float = 0.0
    ties: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in (BITWISE, TOLERANCE):
            raise ValueError(f"numerics {self.kind!r} is neither {BITWISE!r} nor {TOLERANCE!r}")
        if (self.kind == TOLERANCE) != (self.rtol > 0):
            raise ValueError(f"{self.kind} numerics with rtol {self.rtol}")
        if self.ties and self.kind == BITWISE:
            raise ValueError("bitwise numerics know no ties")
        if not self.test:
            raise ValueError("numerics name the test that measured them")


@dataclass(frozen=True)
class Slot:
    """One replaceable piece of a step.

    ``min_rows``..``max_rows`` are the rows (tokens in the step) it can serve. ``needs`` are slots without
    which it does not run. ``reads`` and ``writes`` name the buffers it touches beside its arguments and its
    result; parity snapshots ``writes``. ``weights`` says which weight layout it reads. A ``default`` slot
    runs when no list is given. ``entries`` are the entry points that its kernel launches; a slot
    without any is its stock twin in this tree, and a place where parity compares.
    """

    name: str
    min_rows: int
    max_rows: int
    numerics: Numerics
    stock: str
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    weights: str = "as loaded"
    default: bool = True
    entries: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.min_rows <= self.max_rows:
            raise ValueError(f"slot {self.name}: rows {self.min_rows}..{self.max_rows} are no range")
        if self.name in self.needs:
            raise ValueError(f"slot {self.name} needs itself")

    @property
    def kernel(self) -> bool:
        """Whether this tree has a kernel for it."""
        return bool(self.entries)


class SlotListError(ValueError):
    """A slot list that names an unknown slot or lacks one that another needs."""


@dataclass(frozen=True)
class Selection:
    """The slots that shall run: ``names`` in table order; ``explicit`` when a list was given."""

    names: tuple[str, ...]
    explicit: bool

    def __contains__(self, name: object) -> bool:
        return name in self.names


def table(slots: Iterable[Slot]) -> dict[str, Slot]:
    """Slots by name. Raises ``ValueError`` for a duplicate or for a need that no slot meets."""
    by_name: dict[str, Slot] = {}
    for slot in slots:
        if slot.name in by_name:
            raise ValueError(f"slot {slot.name} is declared twice")
        by_name[slot.name] = slot
    for slot in by_name.values():
        missing = [need for need in slot.needs if need not in by_name]
        if missing:
            raise ValueError(f"slot {slot.name} needs {', '.join(missing)}, which no slot declares")
    return by_name


def select(slots: Mapping[str, Slot], requested: str | None) -> Selection:
    """Read a slot list (``SGLANG_NVIDIA_MEGAKERNEL_SLOTS``): comma-separated names.

    ``None`` selects the default slots, an empty string none: every step function then runs its stock code.
    Raises ``SlotListError`` for an unknown name (with the near ones) and for a slot listed without one that
    it needs.
    """
    if requested is None:
        return Selection(tuple(s.name for s in slots.values() if s.default), explicit=False)
    listed = [name.strip() for name in requested.split(",") if name.strip()]
    for name in listed:
        if name not in slots:
            near = difflib.get_close_matches(name, slots, n=3, cutoff=0.5)
            meant = f"; near: {', '.join(near)}" if near else ""
            raise SlotListError(f"unknown megakernel slot {name!r}{meant}; slots: {', '.join(slots)}")
    for name in listed:
        missing = [need for need in slots[name].needs if need not in listed]
        if missing:
            raise SlotListError(f"megakernel slot {name} needs {', '.join(missing)}, which the list lacks")
    return Selection(tuple(name for name in slots if name in listed), explicit=True)
