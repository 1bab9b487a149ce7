# SPDX-License-Identifier: Apache-2.0
"""Prints an architecture's megakernel slots. Run by the built environment's Python::

    python slot_probe.py ARCHITECTURE

The last line is JSON: slot -> the slots that it needs, in table order. The tables need no more than torch, so
SGLang's own ``__init__``, half a minute of imports, is left out.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from types import ModuleType


def without_init(name: str) -> None:
    """Make ``name`` a package whose submodules can be imported and whose ``__init__`` does not run."""
    found = importlib.util.find_spec(name)
    if found is None or found.submodule_search_locations is None:
        raise SystemExit(f"{name} is not installed here")
    package = ModuleType(name)
    package.__path__ = list(found.submodule_search_locations)
    sys.modules[name] = package


def main(architecture: str) -> None:
    without_init("sglang")
    specs = importlib.import_module("sglang.srt.mega.in_tree").SPECS
    if architecture not in specs:
        raise SystemExit(f"no megakernel spec for {architecture}")
    module, _, _ = specs[architecture].partition(":")
    slots = importlib.import_module(f"{module.rpartition('.')[0]}.slots").SLOTS
    print(json.dumps({name: list(slot.needs) for name, slot in slots.items()}))


if __name__ == "__main__":
    main(sys.argv[1])
