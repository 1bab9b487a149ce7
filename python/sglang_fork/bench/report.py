# SPDX-License-Identifier: Apache-2.0
"""Tables and plots from the measurements' lines. A plumbing line is listed apart, never as a result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from sglang_fork.bench.record import Measurement
from sglang_fork.bench.stats import Interval, Verdict, compare
from sglang_fork.errors import ForkError

COLUMNS = (
    "family",
    "slice",
    "weights",
    "mode",
    "rows",
    "routing",
    "arm",
    "step us [95 %]",
    "layers us",
    "launches/layer",
    "of copy",
    "against stock",
)


def latest(lines: Iterable[Measurement]) -> list[Measurement]:
    """The last line of each case, arm, slot list and attention backend: a later run supersedes an earlier
    one."""
    kept = {(line.case, line.arm, line.slots, line.backend): line for line in lines}
    return sorted(
        kept.values(), key=lambda m: (m.family, m.slice, m.weights, m.mode, m.rows, m.routing, m.arm)
    )


def verdict(stock: Measurement, mega: Measurement) -> Verdict:
    """How the megakernel's layers compare with stock's, by the intervals' bad ends. Raises ``ForkError`` for
    unlike cases."""
    if stock.case != mega.case:
        raise ForkError(f"unlike cases cannot be compared: {stock.case} and {mega.case}", code=1)
    return compare(_layers(stock), _layers(mega))


def _layers(line: Measurement) -> Interval:
    return Interval(line.layers_median_us, line.layers_ci_low_us, line.layers_ci_high_us)


def table(lines: Sequence[Measurement]) -> str:
    """A Markdown table, one line a case and arm. A megakernel is judged against the fastest stock."""
    stock: dict[tuple[str, ...], Measurement] = {}
    for line in sorted(lines, key=lambda m: -m.layers_median_us):
        if line.arm == "stock":
            stock[line.case] = line
    rows = []
    for line in lines:
        against = ""
        if line.arm == "mega" and line.case in stock:
            judged = verdict(stock[line.case], line)
            against = f"{judged.ratio:.2f}x (at worst {judged.worst_ratio:.2f}x)"
        rows.append(
            (
                line.family,
                f"{line.slice}, {line.layers} layers",
                f"{line.weights}, KV {line.kv}",
                line.mode,
                str(line.rows),
                line.routing,
                f"{line.arm} {line.slots}".strip(),
                f"{line.median_us:.0f} [{line.ci_low_us:.0f}, {line.ci_high_us:.0f}]",
                f"{line.layers_median_us:.0f}",
                f"{line.launches_per_layer:.1f}",
                f"{line.fraction_of_copy:.0%}",
                against,
            )
        )
    return _markdown(COLUMNS, rows)


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    out = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    out += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(out)


def sinks(line: Measurement, count: int = 3) -> list[tuple[str, float, float]]:
    """The kernels that take the most time in the layers: (name, launches, microseconds)."""
    ranked = sorted(line.kernels.items(), key=lambda item: -item[1][1])
    return [(name, n, us) for name, (n, us) in ranked[:count]]


def render(lines: Iterable[Measurement]) -> str:
    """The whole report in Markdown."""
    kept = latest(lines)
    real = [line for line in kept if not line.is_plumbing]
    plumbing = [line for line in kept if line.is_plumbing]
    parts = ["# Step times", ""]
    for card in sorted({line.card for line in real}):
        mine = [line for line in real if line.card == card]
        newest = max(mine, key=lambda m: m.date)
        parts += [
            f"## {card}",
            "",
            f"Copy {newest.copy_tb_s:.2f} TB/s, read only {newest.read_tb_s:.2f} TB/s in the newest run "
            f"({newest.date}). One rank's slice, collectives elided in both arms, dummy weights, L2 cold.",
            "",
            table(mine),
            "",
        ]
        for line in mine:
            if line.kernels:
                named = "; ".join(f"{name[:60]} {us:.0f} us in {n:.0f}" for name, n, us in sinks(line))
                parts.append(
                    f"* {_model(line)} {line.weights} {line.mode} {line.rows} rows {line.routing} "
                    f"{line.arm}: {named}"
                )
        parts.append("")
    if not real:
        parts += ["No measurement on a GPU yet.", ""]
    if plumbing:
        parts += [
            "## Plumbing (no GPU: these show that the commands run, not how fast)",
            "",
            table(plumbing),
            "",
        ]
    return "\n".join(parts)


def plot(lines: Iterable[Measurement], folder: Path) -> list[Path]:
    """PNG plots: for each model fraction of copy bandwidth and launches a layer by rows, a waterfall of each
    step's kernels, and bars of parts of the slot list.

    Needs matplotlib. Returns the files written; plumbing lines are not plotted.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    real = [line for line in latest(lines) if not line.is_plumbing]
    if not real:
        raise ForkError("nothing to plot: no measurement on a GPU", "./sglang.sh bench step PRESET")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for model in sorted({_model(line) for line in real}):
        mine = [line for line in real if _model(line) == model]
        for name, field, label in (
            ("fraction", "fraction_of_copy", "fraction of copy bandwidth"),
            ("launches", "launches_per_layer", "launches a layer"),
        ):
            shown = [line for line in mine if getattr(line, field) > 0 and not _is_part(line, mine)]
            written.append(_curves(pyplot, shown, field, label, folder / f"{name}-{model}.png"))
    written += [_waterfall(pyplot, line, folder) for line in real if line.kernels]
    return written + [_bars(pyplot, group, folder) for group in ablations(real)]


def _model(line: Measurement) -> str:
    return f"{line.family}-{line.slice}-{line.layers}"


def _is_part(line: Measurement, among: Iterable[Measurement]) -> bool:
    """Whether this megakernel ran with parts of its slots, beside one that had them all."""
    lists = [
        m.slots.split(",") if m.slots else None for m in among if m.case == line.case and m.arm == "mega"
    ]
    mine = line.slots.split(",")
    return bool(line.slots) and any(other is None or len(other) > len(mine) for other in lists)


def _curves(pyplot: Any, lines: Sequence[Measurement], field: str, label: str, path: Path) -> Path:
    """``field`` by rows, a curve for each mode, format, routing, arm and attention backend."""
    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    groups: dict[str, list[Measurement]] = {}
    for line in lines:
        key = f"{line.weights} {line.mode} {line.routing} {line.arm}, {_short(line.backend)}"
        groups.setdefault(key, []).append(line)
    for key, group in sorted(groups.items()):
        group.sort(key=lambda m: m.rows)
        style = "-" if group[0].arm == "mega" else "--"
        axes.plot([m.rows for m in group], [getattr(m, field) for m in group], style, marker="o", label=key)
    axes.set_xscale("log", base=2)
    ticks = sorted({line.rows for line in lines})
    axes.set_xticks(ticks, [str(rows) for rows in ticks])
    axes.set_xlabel("rows")
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)
    axes.set_title(path.stem, fontsize=8)
    axes.legend(fontsize=6, loc="center left", bbox_to_anchor=(1.01, 0.5))
    _save(figure, path)
    pyplot.close(figure)
    return path


def _short(backend: str) -> str:
    return backend.removesuffix("Backend").removesuffix("Attn").removesuffix("Attention")


def _waterfall(pyplot: Any, line: Measurement, folder: Path) -> Path:
    """A step's kernels, the longest first, each bar beginning where the last ended."""
    figure, axes = pyplot.subplots(figsize=(8, 5))
    ranked = sorted(line.kernels.items(), key=lambda item: -item[1][1])[:15]
    left = 0.0
    for place, (kernel, (_, micros)) in enumerate(ranked):
        axes.barh(place, micros, left=left)
        axes.text(left + micros, place, f" {kernel[:45]} {micros:.0f} us", fontsize=6, va="center")
        left += micros
    axes.invert_yaxis()
    axes.set_xlim(right=1.4 * left)
    axes.set_yticks([])
    axes.set_xlabel(
        f"microseconds by the profiler; the layers take {line.layers_median_us:.0f}: kernels overlap, "
        "and one's wait for another counts",
        fontsize=8,
    )
    title = f"{_model(line)}-{line.weights}-{line.mode}-{line.rows}-{line.routing}-{line.arm}"
    title += f"-{line.slots.replace(',', '+')}" * bool(line.slots) + f"-{_short(line.backend)}"
    axes.set_title(title, fontsize=8)
    path = _save(figure, folder / f"waterfall-{title}.png")
    pyplot.close(figure)
    return path


def ablations(lines: Iterable[Measurement]) -> list[list[Measurement]]:
    """Groups of one case in which the megakernel ran with parts of its slots: stock first, then all slots,
    then the parts."""
    groups: dict[tuple[str, ...], list[Measurement]] = {}
    for line in lines:
        groups.setdefault((*line.case, line.backend), []).append(line)
    return [
        sorted(group, key=lambda m: (m.arm != "stock", m.slots != "", m.slots))
        for group in groups.values()
        if any(m.slots for m in group) and any(m.arm == "stock" for m in group)
    ]


def _bars(pyplot: Any, group: Sequence[Measurement], folder: Path) -> Path:
    figure, axes = pyplot.subplots(figsize=(7, 0.5 * len(group) + 1.5))
    names = [m.arm if m.arm == "stock" else f"slots {m.slots or 'all'}" for m in group]
    axes.barh(names, [m.layers_median_us for m in group])
    for place, m in enumerate(group):
        axes.text(m.layers_median_us, place, f" {m.layers_median_us:.0f} us", va="center", fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("microseconds, layers alone")
    title = f"{_model(group[0])}-{group[0].weights}-{group[0].mode}-{group[0].rows}-{group[0].routing}"
    axes.set_title(title, fontsize=8)
    path = _save(figure, folder / f"slots-{title}.png")
    pyplot.close(figure)
    return path


def _save(figure: object, path: Path) -> Path:
    figure.savefig(path, dpi=120, bbox_inches="tight")  # type: ignore[attr-defined]
    return path
