# SPDX-License-Identifier: Apache-2.0
"""Kernel tests import the fork's own modules from this checkout, without starting upstream's package."""

import sys
import types
from pathlib import Path

PYTHON = Path(__file__).resolve().parents[2] / "python"

for name in ("sglang", "sglang.srt"):
    if name not in sys.modules:
        module = types.ModuleType(name)
        module.__path__ = [str(PYTHON.joinpath(*name.split(".")))]
        sys.modules[name] = module
