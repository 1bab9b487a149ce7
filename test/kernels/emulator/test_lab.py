# SPDX-License-Identifier: Apache-2.0
"""The lab's kernels against float64 in the emulator, through their own scripts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LAB = Path(__file__).resolve().parents[2] / "bench" / "lab"


@pytest.mark.parametrize("script", ["products", "chain", "moe"])
def test_a_lab_script_checks_its_kernels_without_a_gpu(script: str) -> None:
    done = subprocess.run(
        [sys.executable, LAB / f"{script}.py", "--emulate"],
        capture_output=True,
        text=True,
        env=dict(os.environ),
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "error" in done.stdout
