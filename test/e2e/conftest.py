# SPDX-License-Identifier: Apache-2.0
"""Makes ``cpu_engine`` importable here and in the engine's own processes, and the tiny checkpoints."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "engine"))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The random checkpoint of a family, made once a session."""
    from sglang_fork.checkpoints import make

    folder = tmp_path_factory.mktemp("tiny")

    def checkpoint(family: str) -> Path:
        path = folder / family
        return path if path.exists() else make.make(family, path)

    return checkpoint
