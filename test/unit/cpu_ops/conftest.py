# SPDX-License-Identifier: Apache-2.0
"""Loads the CPU operators from the checkout, without SGLang."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("torch", reason="the CPU operators are torch code: ./sglang.sh test runs them")

FOLDER = Path(__file__).parents[3] / "python/sglang/srt/hardware_backend/cpu/operators"


def _load() -> ModuleType:
    name = "cpu_operators"
    spec = importlib.util.spec_from_file_location(
        name, FOLDER / "__init__.py", submodule_search_locations=[str(FOLDER)]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def operators() -> ModuleType:
    return sys.modules.get("cpu_operators") or _load()


@pytest.fixture(scope="session")
def gated_delta(operators: ModuleType) -> ModuleType:
    return operators.registry.gated_delta


@pytest.fixture(scope="session")
def speculative(operators: ModuleType) -> ModuleType:
    return operators.registry.speculative


@pytest.fixture(scope="session")
def normalization(operators: ModuleType) -> ModuleType:
    return operators.registry.normalization
