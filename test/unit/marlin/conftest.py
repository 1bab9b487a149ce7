# SPDX-License-Identifier: Apache-2.0
"""The twin of Marlin's layout, importable by name, and installed on request."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def twin(monkeypatch):
    import marlin_twin

    with marlin_twin.installed(monkeypatch):
        yield marlin_twin
