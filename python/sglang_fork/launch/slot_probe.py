# SPDX-License-Identifier: Apache-2.0
"""Prints an architecture's megakernel slots. Run by the built environment's Python::

    python slot_probe.py ARCHITECTURE

The last line is JSON: slot -> the slots that it needs, in table order.
"""

from __future__ import annotations

import importlib
import json
import sys


def main(architecture: str) -> None:
    from sglang.srt.mega import in_tree

    path = in_tree.SPECS.get(architecture)
    if path is None:
        raise SystemExit(f"no megakernel spec for {architecture}")
    module, _, _ = path.partition(":")
    slots = importlib.import_module(module).SLOTS
    print(json.dumps({name: list(slot.needs) for name, slot in slots.items()}))


if __name__ == "__main__":
    main(sys.argv[1])
