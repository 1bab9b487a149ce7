# SPDX-License-Identifier: Apache-2.0
"""The status page: slot x width x architecture, each with the evidence that a committed record gives.

Evidence is earned by runs. What ran in SGLang or alone comes from the measurements of ``test/bench/results``,
what was assembled from ``kernels.jsonl`` there, which ``bench status --kernels FILE`` fills from what ``build
--kernels`` wrote. A cell without a record is empty.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_fork.errors import ForkError
from sglang_fork.launch import slot_probe
from sglang_fork.paths import ROOT

RESULTS = ROOT / "test" / "bench" / "results"
PAGE = ROOT / "test" / "bench" / "STATUS.md"
KERNELS = "kernels.jsonl"
FAMILIES = ("qwen3_5", "glm_moe_dsa", "deepseek_v4", "kimi_k3")
ARCHITECTURES = ("sm_90a", "sm_100a", "sm_103a", "sm_121a")
CARDS = {"NVIDIA H200": "sm_90a"}
# A part of the lab's records -> the slot whose kernel it ran alone.
ALONE = {
    "mla": "sparse_mla",
    "mla against stock": "sparse_mla",
    "mhc": "mhc",
    "mHC against stock": "mhc",
}
KEPT = ("source", "entry", "constants", "arch", "compiler", "registers", "spill_bytes", "shared_bytes")
HEAD = """# Status of the megakernel's slots

Made by `./sglang.sh bench status --write` from the slot tables and the records in `results`; a test holds it
to them.

* **in SGLang**: ran in real SGLang's captured step, beside stock, on that architecture (`step.jsonl`).
* **alone**: the kernel ran there by itself, beside stock's (`glm_deepseek.jsonl`).
* **assembled**: machine code was made, with the most registers a thread and the bytes spilled; it did not run
  (`kernels.jsonl`, from `./sglang.sh build --kernels`).
* **emulated**: the tests that run it in the CPU emulator, or compare the slot with its stock twin, in CI.
* An empty cell: no record.
"""


@dataclass(frozen=True)
class Ran:
    """A kernel's run: whether in SGLang, its rows, the architecture, and the record's date and tree."""

    slot: str
    arch: str
    rows: int
    inside: bool
    date: str
    tree: str

    def __str__(self) -> str:
        return f"{'in SGLang' if self.inside else 'alone'} ({self.date}, {self.tree})"


def lines(path: Path) -> list[dict[str, Any]]:
    """The records of a file; none where it does not exist."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def runs(folder: Path, family: str, defaults: Sequence[str]) -> list[Ran]:
    """What the measurements say ran. A step without a slot list ran the family's default slots."""
    found = []
    for line in lines(folder / "step.jsonl"):
        if line["family"] == family and line["arm"] == "mega" and line["card"] in CARDS:
            for slot in line["slots"].split(",") if line["slots"] else defaults:
                found.append(Ran(slot, CARDS[line["card"]], line["rows"], True, line["date"], line["tree"]))
    for line in lines(folder / "glm_deepseek.jsonl"):
        slot = ALONE.get(line["part"])
        if slot is not None and line.get("arm", "ours") == "ours" and line["card"] in CARDS:
            found.append(Ran(slot, CARDS[line["card"]], line["rows"], False, line["date"], line["tree"]))
    return found


def widths(family: str, slot: Any) -> list[tuple[int, int]]:
    """The rows that one compiled form serves, as (first, last): the family's buckets, else all."""
    tactics = importlib.import_module(f"sglang.srt.mega.models.{family}.tactics")
    buckets = [bucket for bucket in getattr(tactics, "BUCKETS", ()) if bucket <= slot.max_rows]
    if not buckets:
        return [(slot.min_rows, slot.max_rows)]
    firsts = [slot.min_rows, *(bucket + 1 for bucket in buckets[:-1])]
    return list(zip(firsts, buckets, strict=True))


def assembled(
    slot: Any, arch: str, last: int, records: Iterable[Mapping[str, Any]]
) -> list[Mapping[str, Any]] | None:
    """The records of all the slot's entries for ``arch`` at the width ``last``, or None where one lacks."""
    found = []
    for entry in slot.entries:
        mine = [
            r
            for r in records
            if r["entry"] == entry and r["arch"] == arch and r["constants"].get("ROWS", last) == last
        ]
        if not mine:
            return None
        found += mine
    return found


def cell(
    slot: Any, arch: str, rows: tuple[int, int], ran: Iterable[Ran], records: list[dict[str, Any]]
) -> str:
    """The evidence for one slot, architecture and width, the strongest first."""
    first, last = rows
    here = [r for r in ran if r.slot == slot.name and r.arch == arch and first <= r.rows <= last]
    best = max(here, key=lambda r: (r.inside, r.date, r.tree), default=None)
    built = assembled(slot, arch, last, records)
    words = []
    if best is not None:
        seen = sorted({r.rows for r in here if r.inside == best.inside})
        words.append(f"{best}" + ("" if seen == [last] and first == last else f" at {_listed(seen)} rows"))
    if built is not None:
        spilled = max(r["spill_bytes"] for r in built)
        words.append(
            f"assembled: {max(r['registers'] for r in built)} registers, "
            + (f"spills {spilled} B" if spilled else "no spills")
        )
    return "; ".join(words)


def emulated(family: str, slot: Any, sources: Mapping[str, str]) -> str:
    """The tests of a slot on the CPU: of its kernel where it has an emulation, and of the slot in SGLang
    where the test that it names runs its family.
    """
    kernel, named = f"test/kernels/{family}/test_steps.py", slot.numerics.test
    emulates = slot.entries and not any(sources.get(entry, "").endswith(".py") for entry in slot.entries)
    tests = [kernel] if emulates else []
    for test in (kernel, named) if emulates else (named,):
        if not (ROOT / test).is_file():
            raise ForkError(f"slot {slot.name} names the test {test}, which does not exist")
    if named != kernel and f'"{family}"' in (ROOT / named).read_text(encoding="utf-8"):
        tests.append(named)
    return ", ".join(f"`{test.removeprefix('test/')}`" for test in tests)


def page(folder: Path = RESULTS) -> str:
    """The page, from the slot tables of this tree and the records in ``folder``."""
    slot_probe.without_init()
    records = lines(folder / KERNELS)
    text = [HEAD]
    for family in FAMILIES:
        package = f"sglang.srt.mega.models.{family}"
        slots = importlib.import_module(f"{package}.slots").SLOTS
        specs = _specs(family)
        ran = runs(folder, family, [s.name for s in slots.values() if s.default])
        text += [f"## {family}", "", f"| slot | rows | {' | '.join(ARCHITECTURES)} | emulated |"]
        text += [f"|---|---|{'---|' * (len(ARCHITECTURES) + 1)}"]
        for slot in slots.values():
            tests = emulated(family, slot, {s.entry: s.source for s in specs})
            name = f"`{slot.name}`" + ("" if slot.default or not slot.entries else " (opt-in)")
            if not slot.entries:
                span = _span((slot.min_rows, slot.max_rows))
                text.append(f"| {name} | {span} | no kernel: stock |{' |' * 3} {tests} |")
                continue
            for rows in widths(family, slot):
                cells = [cell(slot, arch, rows, ran, records) for arch in ARCHITECTURES]
                text.append(f"| {name} | {_span(rows)} | {' | '.join(cells)} | {tests} |")
        text.append("")
    if records:
        made = sorted({(r["date"], r["tree"], r["compiler"]) for r in records})
        text += [
            "Assembled from:",
            "",
            *(f"* {date}, tree {tree}, {compiler}" for date, tree, compiler in made),
        ]
    return "\n".join(text).rstrip() + "\n"


def take(kernels: Path, folder: Path, date: str, tree: str) -> int:
    """Adds the records of ``build --kernels`` to the committed ones, a later one in place of an earlier;
    returns how many there are.
    """
    kept = {_key(line): line for line in lines(folder / KERNELS)}
    for record in json.loads(kernels.read_text(encoding="utf-8")):
        line = {"date": date, "tree": tree, **{name: record[name] for name in KEPT}}
        kept[_key(line)] = line
    ordered = [kept[key] for key in sorted(kept)]
    (folder / KERNELS).write_text(
        "".join(json.dumps(line, sort_keys=True) + "\n" for line in ordered), encoding="utf-8"
    )
    return len(ordered)


def _specs(family: str) -> list[Any]:
    """The family's kernels; none where it has no tactics."""
    name = f"sglang.srt.mega.models.{family}.tactics"
    if not (ROOT / "python" / (name.replace(".", "/") + ".py")).is_file():
        return []
    return list(importlib.import_module(name).preset_specs())


def _key(line: Mapping[str, Any]) -> str:
    return f"{line['source']} {line['arch']} {json.dumps(line['constants'], sort_keys=True)}"


def _span(rows: tuple[int, int]) -> str:
    return str(rows[0]) if rows[0] == rows[1] else f"{rows[0]} to {rows[1]}"


def _listed(rows: Sequence[int]) -> str:
    return ", ".join(map(str, rows))
