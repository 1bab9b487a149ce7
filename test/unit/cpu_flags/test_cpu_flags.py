# SPDX-License-Identifier: Apache-2.0
"""The CPU flag table: standard library only, every special flag explained."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sglang_fork import cpu_flags

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("family", cpu_flags.FAMILIES)
def test_what_a_family_adds_has_a_reason(family: str) -> None:
    chosen = cpu_flags.FAMILIES[family]
    common = {**cpu_flags.FORCED, **cpu_flags.SIZED}
    added = {
        flag for flag, value in {**chosen.forced, **chosen.sized}.items() if common.get(flag, 0) != value
    }
    assert added | set(chosen.environment) == set(chosen.why)


def test_engine_arguments_are_typed_and_overridable() -> None:
    arguments = cpu_flags.engine_arguments("qwen3_5", max_running_requests=2, dtype="float32")
    assert arguments["device"] == "cpu"
    assert arguments["max_total_tokens"] == 16384
    assert arguments["mem_fraction_static"] == 0.3
    assert arguments["max_running_requests"] == 2
    assert arguments["dtype"] == "float32"


def test_imports_nothing_but_the_standard_library() -> None:
    script = (
        "import sys; import sglang_fork.cpu_flags; "
        "print([m for m in ('torch', 'sglang', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", script],
        cwd=ROOT / "python",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
