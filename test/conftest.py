# SPDX-License-Identifier: Apache-2.0
"""Fixtures for every area."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def checkout() -> Path:
    """The checkout that these tests belong to."""
    return ROOT


@pytest.fixture
def overlay(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Imports one file that the fork adds to SGLang, straight from the checkout and without SGLang itself.

    ``overlay("srt/mega/slots.py")`` is for modules that import nothing of upstream's.
    """

    def load(path: str) -> ModuleType:
        file = ROOT / "python" / "sglang" / path
        name = "overlay_" + path.removesuffix(".py").replace("/", "_")
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None and spec.loader is not None, f"{file} does not exist"
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return load
