# SPDX-License-Identifier: Apache-2.0
"""Pretend devices, and the twin of Marlin's kernels."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "marlin"))


@pytest.fixture
def twin(monkeypatch):
    import marlin_twin

    with marlin_twin.installed(monkeypatch):
        yield marlin_twin


def platform(capability):
    """What ``get_platform()`` answers on an NVIDIA device of a capability, as far as the seams ask."""
    major, _ = capability
    return SimpleNamespace(
        device_capability=capability,
        is_cuda=True,
        is_npu=False,
        is_hip=False,
        is_xpu=False,
        is_blackwell=major in (10, 11, 12),
        is_sm90=major == 9,
        is_sm100=major == 10,
        is_sm110=major == 11,
        is_sm120=major == 12,
    )


@pytest.fixture
def on_device(monkeypatch):
    """``on_device(capability, *modules)``: those modules see that device."""

    def pretend(capability, *modules):
        for module in modules:
            for name, value in (
                ("get_platform", lambda: platform(capability)),
                ("get_device_capability", lambda device_id=0: capability),
                ("is_cuda", lambda: True),
            ):
                if hasattr(module, name):
                    monkeypatch.setattr(module, name, value)

    return pretend
