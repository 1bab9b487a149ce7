# SPDX-License-Identifier: Apache-2.0
"""Plans: which slots run as kernels at which rows, and why the others run stock."""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sglang.srt.mega.slots import Selection, Slot

logger = logging.getLogger(__name__)


class Cause(enum.Enum):
    """What makes a slot unavailable; an explicitly listed slot stops the server only for ``CONFIG``."""

    CONFIG = "configuration"
    WEIGHTS = "loaded weights"
    DEVICE = "device"


@dataclass(frozen=True)
class Unavailable:
    """Why a slot cannot run: its cause, the reason in words and the way to cure it."""

    cause: Cause
    reason: str
    fix: str


@dataclass(frozen=True)
class Choice:
    """What one slot runs at one width: its kernel, or its stock step for ``reason``."""

    slot: str
    rows: int
    kernel: bool
    reason: str = ""


NO_KERNEL = Unavailable(Cause.DEVICE, "this tree has no kernel for it", "the stock step runs it")


class PlanError(ValueError):
    """An explicitly listed slot that the configuration contradicts."""


@dataclass(frozen=True)
class Plan:
    """Every slot's choice at every width. ``widths`` are the rows that the step covers, ascending."""

    widths: tuple[int, ...]
    choices: tuple[Choice, ...]

    def kernels(self, rows: int) -> frozenset[str]:
        """The slots that run as kernels at ``rows``."""
        return frozenset(c.slot for c in self.choices if c.rows == rows and c.kernel)

    def summary(self) -> tuple[str, ...]:
        """Every slot's rows that run its kernel, and why others run stock: what ranks compare."""
        names = dict.fromkeys(c.slot for c in self.choices)
        lines = []
        for name in names:
            mine = [c for c in self.choices if c.slot == name]
            rows = [c.rows for c in mine if c.kernel]
            reasons = sorted({c.reason for c in mine if not c.kernel})
            lines.append(f"{name}: kernel at {rows}" + (f", stock for {reasons}" if reasons else ""))
        return tuple(lines)

    def render(self) -> str:
        """A table, one line a slot: the rows that run its kernel, and why the others run stock."""
        names = list(dict.fromkeys(c.slot for c in self.choices))
        width = max((len(n) for n in names), default=4)
        lines = [f"{'slot':{width}}  kernel rows  stock rows"]
        for name in names:
            mine = [c for c in self.choices if c.slot == name]
            reasons: dict[str, list[int]] = {}
            for choice in mine:
                if not choice.kernel:
                    reasons.setdefault(choice.reason, []).append(choice.rows)
            kernel = _ranges([c.rows for c in mine if c.kernel]) or "none"
            stock = "; ".join(f"{_ranges(rows)}: {why}" for why, rows in reasons.items())
            lines.append(f"{name:{width}}  {kernel:11}  {stock or 'none'}")
        return "\n".join(lines)


def _ranges(rows: Sequence[int]) -> str:
    """``1,2,4-7`` for ascending numbers: runs of three and more as a range."""
    runs: list[list[int]] = []
    for row in rows:
        if runs and row == runs[-1][-1] + 1:
            runs[-1].append(row)
        else:
            runs.append([row])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs)


def agree(plan: Plan, name: str) -> None:
    """Raise on every rank unless every rank of the group made the same plan; call it before anything of the
    plan is compiled or allocated. Ranks that run a slot differently would wait in different exchanges."""
    from sglang.srt.kernel_plugins.nvidia.binding import megakernel_agree

    megakernel_agree(plan.summary(), what=f"slots of {name}")


def make_plan(
    slots: Mapping[str, Slot],
    selection: Selection,
    widths: Sequence[int],
    availability: Callable[[Slot], Unavailable | None],
    slower: Callable[[Slot, int], str | None] = lambda slot, rows: None,
) -> Plan:
    """Decide every slot at every width.

    ``availability`` says why the kernel of a slot cannot run here, or None. ``slower`` may veto a width where
    stock was measured to be faster, giving the reason. An unavailable default slot falls back with one log
    line; an explicitly listed one raises ``PlanError`` when the configuration contradicts it and falls back
    when the weights or the device do. A slot whose need fell back falls back too.
    """
    refused: dict[str, str] = {}
    for slot in slots.values():
        if slot.name not in selection:
            refused[slot.name] = "not in the slot list" if selection.explicit else "opt-in"
            continue
        why = availability(slot) if slot.kernel else NO_KERNEL
        if why is not None:
            if selection.explicit and why.cause is Cause.CONFIG:
                raise PlanError(
                    f"megakernel slot {slot.name} was requested but {why.reason} "
                    f"({why.cause.value}); {why.fix}"
                )
            refused[slot.name] = f"{why.reason} ({why.cause.value})"
            logger.info("megakernel slot %s runs stock: %s", slot.name, refused[slot.name])
    _close_over_needs(slots, refused)

    choices = []
    for rows in sorted(set(widths)):
        stock = dict(refused)
        for slot in slots.values():
            if slot.name not in stock and not slot.min_rows <= rows <= slot.max_rows:
                stock[slot.name] = f"serves {slot.min_rows}-{slot.max_rows} rows"
            elif slot.name not in stock and (why_slower := slower(slot, rows)) is not None:
                stock[slot.name] = why_slower
        _close_over_needs(slots, stock)
        choices += [Choice(name, rows, name not in stock, stock.get(name, "")) for name in slots]
    return Plan(tuple(sorted(set(widths))), tuple(choices))


def _close_over_needs(slots: Mapping[str, Slot], refused: dict[str, str]) -> None:
    """Refuse every slot that needs a refused one, to a fixed point."""
    pending = True
    while pending:
        pending = False
        for slot in slots.values():
            lost = [need for need in slot.needs if need in refused]
            if slot.name not in refused and lost:
                refused[slot.name] = f"needs {lost[0]}, which runs stock"
                pending = True
