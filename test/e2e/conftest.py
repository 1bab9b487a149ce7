# SPDX-License-Identifier: Apache-2.0
"""Makes ``cpu_engine`` and ``front_door`` importable, here and in the engines' processes; shared engines."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sglang_fork import cpu_flags
from sglang_fork.paths import ROOT

# Engines and servers import the families' model files alone, as the launcher's tiny servers do.
PACKAGE = "SGLANG_EXTERNAL_MODEL_PACKAGE"
os.environ.setdefault(PACKAGE, cpu_flags.SERVER[PACKAGE][0])
for folder in ("engine", "http"):
    sys.path.insert(0, str(Path(__file__).parent / folder))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A family's tiny checkpoint: Qwen3.5's trained one; the others' random ones, made once a session."""
    from sglang_fork.checkpoints import make

    folder = tmp_path_factory.mktemp("tiny")

    def checkpoint(family: str) -> Path:
        if family == "qwen3_5":
            return ROOT / "test" / "checkpoints" / family
        path = folder / family
        return path if path.exists() else make.make(family, path)

    return checkpoint


@pytest.fixture(scope="session")
def engines(tiny) -> Iterator[Callable[..., Any]]:
    """``engines(family)`` decodes plainly, ``engines(family, steps)`` drafts ``steps`` tokens a step.

    Their pools are small and promised to more requests than fit; prompts are computed in chunks of 64.
    """
    from cpu_engine.local import local_engine

    running: dict[tuple[str, int], Any] = {}
    with ExitStack() as stack:

        def engine(family: str, steps: int = 0) -> Any:
            if (family, steps) not in running:
                settings: dict[str, Any] = {
                    "chunked_prefill_size": 64,
                    "max_total_tokens": 1280,
                    "max_running_requests": 12,
                    "schedule_conservativeness": 0.1,
                    "constrained_json_disable_any_whitespace": True,
                }
                if steps:
                    settings |= {
                        "speculative_algorithm": "EAGLE",
                        "speculative_num_steps": steps,
                        "speculative_eagle_topk": 1,
                        "speculative_num_draft_tokens": steps + 1,
                    }
                running[family, steps] = stack.enter_context(local_engine(family, tiny(family), **settings))
            return running[family, steps]

        yield engine
