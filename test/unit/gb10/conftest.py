# SPDX-License-Identifier: Apache-2.0
"""Pretend devices, and the twin of Marlin's kernels."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

UNIT = Path(__file__).parents[1]
sys.path[:0] = [str(UNIT / "marlin"), str(UNIT / "models" / "production")]


@pytest.fixture
def twin(monkeypatch):
    import marlin_twin

    with marlin_twin.installed(monkeypatch):
        yield marlin_twin


@pytest.fixture(scope="session")
def loads(tmp_path_factory):
    """What ``loads.py`` saw: one process that is a GB10, for every test that needs one."""
    command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("loads.py"))]
    command.append(str(tmp_path_factory.mktemp("gb10")))
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def loaded(loads):
    """``loaded(name)``: what one load saw; the test fails where the load failed."""

    def of(name):
        assert "seen" in loads[name], loads[name]["failed"][-3000:]
        return loads[name]["seen"]

    return of


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
