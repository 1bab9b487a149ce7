# SPDX-License-Identifier: Apache-2.0
"""``./sglang.sh show PRESET``: model, hardware, memory, flags and their sources."""

from __future__ import annotations

import argparse

from sglang_fork import memory, preset
from sglang_fork.errors import ForkError
from sglang_fork.suggest import near

HELP = "show what a preset is: model, hardware, memory, flags and where they come from"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("preset", metavar="PRESET")
    parser.add_argument("--on", metavar="MACHINE", help="its variant for another machine")


def run(args: argparse.Namespace) -> int:
    name = preset.find(args.preset)
    if name is None:
        raise ForkError(f"unknown preset {args.preset}", near(args.preset, preset.names()))
    chosen = preset.load(name)
    print("\n".join(describe(chosen.on(args.on) if args.on else chosen)))
    return 0


def describe(p: preset.Preset) -> list[str]:
    """The preset as text, one fact a line."""
    h = p.hardware
    nodes = f" on {h.nodes} nodes" if h.nodes > 1 else ""
    lines = [
        f"{p.name}: {p.title}",
        f"  model      {p.model.path}{f' at {p.model.revision}' if p.model.revision else ''}"
        f"  ({p.model.source}; {p.model.variable} overrides)",
        f"  hardware   {h.gpus} x {h.name}{nodes}, {', '.join(h.isas)}, {h.memory_gib:g} GiB each"
        + (", shared with the system" if h.unified else ""),
    ]
    lines += [f"  memory     {line}" for line in memory.estimate(p).lines()]
    lines += [f"  tiny twin  {p.family or 'none'}"]
    slots = "" if p.megakernel.slots is None else f", slots {p.megakernel.slots}"
    lines += [f"  megakernel {p.megakernel.mode}{slots}  ({p.megakernel.source})"]
    if p.machines:
        lines += [f"  variants   {', '.join(f'--on {m}' for m in sorted(p.machines))}"]
    if p.model.note:
        lines += [f"  note       {p.model.note}"]
    for title, settings in (
        ("environment", p.env),
        ("flags", p.flags),
        ("draft flags (DISABLE_MTP=1 leaves them out)", p.draft),
    ):
        if settings:
            lines += ["", f"{title}:"]
            lines += [_line(k, s, "" if settings is p.env else "--") for k, s in settings.items()]
    return lines


def _line(name: str, setting: preset.Setting, dashes: str) -> str:
    value = " ".join(setting.words())
    return f"  {dashes + name:38} {value:28} {setting.source}"
