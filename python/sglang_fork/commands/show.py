# SPDX-License-Identifier: Apache-2.0
"""``./sglang.sh show PRESET``: model, hardware, memory, flags and their sources."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from sglang_fork import memory, preset
from sglang_fork.errors import ForkError
from sglang_fork.resolve import SLOTS
from sglang_fork.suggest import near

PROBE = Path(__file__).parents[1] / "launch" / "slot_probe.py"
HELP = "show what a preset is: model, hardware, memory, flags and where they come from"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("preset", metavar="PRESET")
    parser.add_argument("--on", metavar="MACHINE", help="its variant for another machine")
    parser.add_argument("--plan", action="store_true", help="the megakernel's plan too")


def run(args: argparse.Namespace) -> int:
    name = preset.find(args.preset)
    if name is None:
        raise ForkError(f"unknown preset {args.preset}", near(args.preset, preset.names()))
    chosen = preset.load(name)
    chosen = chosen.on(args.on) if args.on else chosen
    print("\n".join(describe(chosen)))
    if args.plan:
        print(f"\nmegakernel plan:\n{plan(chosen)}")
    return 0


def plan(p: preset.Preset) -> str:
    """Which rows of each slot run a kernel, with the slot list that the preset or the shell names."""
    slots = os.environ.get("SLOTS", p.megakernel.slots)
    listed = {} if slots is None else {SLOTS: slots}
    done = subprocess.run(
        [sys.executable, str(PROBE), p.architecture, "--plan"],
        env={**os.environ, **listed},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise ForkError(f"no plan for {p.name}: {reason}")
    return done.stdout.strip()


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
