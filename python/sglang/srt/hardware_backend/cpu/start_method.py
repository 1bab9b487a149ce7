# SPDX-License-Identifier: Apache-2.0
"""How a CPU server starts its scheduler and detokenizer.

SGLang spawns them, and each imports SGLang again, which is most of a small server's start. A fork shares the
import, but loses the parent's threads: it is for a parent that has run nothing in parallel, so it has to be
asked for. ``./sglang.sh PRESET --tiny`` asks, since its server process does nothing before it starts these.
"""

from __future__ import annotations

import os

VARIABLE = "SGLANG_CPU_START_METHOD"
METHODS = ("spawn", "fork")


def start_method(device: str) -> str:
    """The multiprocessing start method: what ``SGLANG_CPU_START_METHOD`` says on a CPU, else ``spawn``."""
    method = os.environ.get(VARIABLE, "spawn") if device == "cpu" else "spawn"
    if method not in METHODS:
        raise ValueError(f"{VARIABLE}={method}: one of {', '.join(METHODS)}")
    return method
