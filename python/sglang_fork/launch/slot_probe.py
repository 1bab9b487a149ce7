# SPDX-License-Identifier: Apache-2.0
"""Prints an architecture's megakernel slots, or its plan. Needs Python alone: the tables are plain data::

    python slot_probe.py ARCHITECTURE [--plan]

The last line is JSON: slot -> the slots that it needs, in table order. With ``--plan`` it is the plan of the
slot list ``SGLANG_NVIDIA_MEGAKERNEL_SLOTS``; no weights are read, so a slot that a checkpoint's layout would
turn down still shows as a kernel.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

SGLANG = Path(__file__).resolve().parents[2] / "sglang"


def without_init() -> None:
    """Make ``sglang`` the fork's own files, whose submodules can be imported without SGLang's ``__init__``,
    half a minute of imports. Only for a process that never imports SGLang itself.
    """
    package = ModuleType("sglang")
    package.__path__ = [str(SGLANG)]
    sys.modules["sglang"] = package


def table(architecture: str) -> tuple[str, Mapping[str, Any], int]:
    """(family, slots, the widest step) of an architecture; ``LookupError`` where it has no spec."""
    without_init()
    specs = importlib.import_module("sglang.srt.mega.in_tree").SPECS
    if architecture not in specs:
        raise LookupError(f"no megakernel spec for {architecture}")
    package = specs[architecture].partition(":")[0].rpartition(".")[0]
    slots = importlib.import_module(f"{package}.slots")
    return package.rpartition(".")[2], slots.SLOTS, slots.MAX_ROWS


def plan(architecture: str) -> str:
    """The plan as a table. ``ValueError`` for a slot list that cannot be read."""
    try:
        family, slots, max_rows = table(architecture)
    except LookupError as error:
        return f"{error.args[0]}: every step is SGLang's own"
    from sglang.srt.mega.in_tree import ISAS
    from sglang.srt.mega.plan import make_plan
    from sglang.srt.mega.slots import select

    selection = select(slots, os.environ.get("SGLANG_NVIDIA_MEGAKERNEL_SLOTS"))
    made = make_plan(slots, selection, range(1, max_rows + 1), lambda slot: None)
    return f"{family} on {', '.join(sorted(ISAS))}\n{made.render()}"


def main(architecture: str, *words: str) -> str:
    if words == ("--plan",):
        return plan(architecture)
    return json.dumps({name: list(slot.needs) for name, slot in table(architecture)[1].items()})


if __name__ == "__main__":
    try:
        print(main(*sys.argv[1:]))
    except (LookupError, ValueError) as error:
        raise SystemExit(str(error.args[0])) from None
