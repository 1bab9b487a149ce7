# SPDX-License-Identifier: Apache-2.0
"""``bench kernels``: each slot's kernels against the stock kernels that they replace, and both against the
time that the slot's bytes take at copy speed.

A slot is measured inside the whole step, where its weights are cold and its neighbours run: one arm has that
slot alone. What stock's profile has and that arm's has not are the kernels that the slot replaces; their time
less what the step became faster is the slot's own, overlap with its neighbours included.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sglang_fork.bench.record import Measurement


@dataclass(frozen=True)
class SlotTime:
    """One slot of one step. Microseconds over all layers; ``floor_us`` is 0 where the bytes are not known."""

    family: str
    slice: str
    rows: int
    routing: str
    slot: str
    stock_us: float
    mega_us: float
    stock_launches: float
    mega_launches: float
    floor_us: float

    @property
    def ratio(self) -> float:
        return self.stock_us / self.mega_us if self.mega_us > 0 else 0.0


def replaced(stock: Measurement, alone: Measurement) -> tuple[float, float, float]:
    """Microseconds and launches of stock's kernels that ``alone`` does not run; launches that only it has."""
    micros = launches = new = 0.0
    for name in stock.kernels.keys() | alone.kernels.keys():
        before, total = stock.kernels.get(name, [0.0, 0.0])
        after = alone.kernels.get(name, [0.0, 0.0])[0]
        if round(before - after) > 0:
            micros += total * (before - after) / before
            launches += before - after
        elif round(after - before) > 0:
            new += after - before
    return micros, launches, new


def slot_times(
    lines: Iterable[Measurement], bytes_of: Mapping[tuple[str, int, str], int] | None = None
) -> list[SlotTime]:
    """The slots that ``lines`` measured alone; ``bytes_of`` (slot, rows, routing) -> weight bytes."""
    kept = {(line.case, line.arm, line.slots): line for line in lines if line.kernels}
    out = []
    for (case, arm, slots), line in kept.items():
        stock = kept.get((case, "stock", ""))
        if arm != "mega" or not slots or stock is None:
            continue
        micros, gone, new = replaced(stock, line)
        parts = [(bytes_of or {}).get((slot, line.rows, line.routing), 0) for slot in slots.split(",")]
        weight = sum(parts) if all(parts) else 0
        out.append(
            SlotTime(
                family=line.family,
                slice=line.slice,
                rows=line.rows,
                routing=line.routing,
                slot=slots,
                stock_us=micros,
                mega_us=micros - (stock.layers_median_us - line.layers_median_us),
                stock_launches=gone / line.layers,
                mega_launches=new / line.layers,
                floor_us=weight / line.copy_tb_s / 1e6,
            )
        )
    return sorted(out, key=lambda s: (s.family, s.slice, s.rows, s.routing, s.slot))


def table(times: Iterable[SlotTime]) -> str:
    head = (
        "family",
        "rows",
        "routing",
        "slot",
        "stock us",
        "kernel us",
        "ratio",
        "launches a layer",
        "floor us",
        "of floor",
    )
    rows = [
        (
            f"{t.family} {t.slice}",
            str(t.rows),
            t.routing,
            t.slot,
            f"{t.stock_us:.0f}",
            f"{t.mega_us:.0f}",
            f"{t.ratio:.2f}",
            f"{t.stock_launches:.1f} to {t.mega_launches:.1f}",
            f"{t.floor_us:.0f}" if t.floor_us else "",
            f"{t.floor_us / t.mega_us:.0%}" if t.floor_us and t.mega_us > 0 else "",
        )
        for t in times
    ]
    out = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join([*out, *("| " + " | ".join(row) + " |" for row in rows)])
