# SPDX-License-Identifier: Apache-2.0
"""Prints the megakernel's plan for an architecture. Run by the built environment's Python::

    python plan_probe.py ARCHITECTURE

The slot list is ``SGLANG_NVIDIA_MEGAKERNEL_SLOTS``. No weights are read, so a slot that a checkpoint's layout
would turn down still shows as a kernel.
"""

from __future__ import annotations

import importlib
import sys


def render(architecture: str) -> str:
    from sglang.srt.environ import envs
    from sglang.srt.mega import in_tree
    from sglang.srt.mega.plan import make_plan
    from sglang.srt.mega.slots import select

    path = in_tree.SPECS.get(architecture)
    if path is None:
        return f"no megakernel spec for {architecture}: every step is SGLang's own"
    module, _, name = path.partition(":")
    loaded = importlib.import_module(module)
    spec, slots = getattr(loaded, name), loaded.SLOTS
    selection = select(slots, envs.SGLANG_NVIDIA_MEGAKERNEL_SLOTS.get())
    unavailable = getattr(loaded, "without_weights", lambda slot: None)
    plan = make_plan(slots, selection, range(1, spec.max_rows + 1), unavailable)
    return f"{spec.name} on {', '.join(sorted(spec.requires.isas))}\n{plan.render()}"


if __name__ == "__main__":
    try:
        print(render(sys.argv[1]))
    except ValueError as error:
        raise SystemExit(str(error)) from None
