# SPDX-License-Identifier: Apache-2.0
"""``show --plan`` without a build: each family's slots, and why each runs stock."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from sglang_fork.commands.show import PROBE
from sglang_fork.paths import ROOT
from sglang_fork.resolve import SLOTS

ENVIRONMENT = {k: v for k, v in os.environ.items() if k not in ("SLOTS", SLOTS)}


def plan(architecture: str, slots: str | None = None) -> subprocess.CompletedProcess[str]:
    listed = {} if slots is None else {SLOTS: slots}
    return subprocess.run(
        [sys.executable, str(PROBE), architecture, "--plan"], env=listed, capture_output=True, text=True
    )


def rows_of(text: str) -> dict[str, str]:
    """Slot -> what the table says of it."""
    return {line.split()[0]: " ".join(line.split()[1:]) for line in text.splitlines()[2:]}


@pytest.mark.parametrize(
    ("architecture", "slots", "expected"),
    [
        ("Qwen3_5MoeForCausalLM", None, {"gdn": "1-8 none", "attention": "1-8 none", "moe": "1-8 none"}),
        ("Qwen3_5MoeForCausalLM", "moe", {"gdn": "none 1-8: not in the slot list", "moe": "1-8 none"}),
        ("GlmMoeDsaForCausalLM", None, {"sparse_mla": "none 1-16: opt-in", "q_norm": "none 1-16: opt-in"}),
        ("GlmMoeDsaForCausalLM", "q_norm,moe", {"q_norm": "1-16 none", "moe": "none 1-16: this tree has no"}),
        (
            "DeepseekV41ForCausalLM",
            "mhc",
            {"mhc": "1-48 none", "attention": "none 1-48: not in the slot list"},
        ),
        ("KimiK3ForConditionalGeneration", None, {"kda": "none 1-64: this tree has no kernel for it"}),
    ],
)
def test_a_plan(architecture: str, slots: str | None, expected: dict[str, str]) -> None:
    done = plan(architecture, slots)
    assert done.returncode == 0, done.stderr
    table = rows_of(done.stdout)
    for slot, says in expected.items():
        assert table[slot].startswith(says), done.stdout


def test_an_architecture_without_a_spec_and_an_unknown_slot() -> None:
    assert plan("NemotronHForCausalLM").stdout.startswith("no megakernel spec for NemotronHForCausalLM")
    bad = plan("Qwen3_5MoeForCausalLM", "no_such_slot")
    assert bad.returncode and "unknown megakernel slot 'no_such_slot'" in bad.stderr


def test_the_front_door_prints_the_presets_plan() -> None:
    def show(*words: str, **shell: str) -> subprocess.CompletedProcess[str]:
        command = [str(ROOT / "sglang.sh"), "show", *words, "--plan"]
        return subprocess.run(command, env=ENVIRONMENT | shell, capture_output=True, text=True)

    done = show("Qwen3.5-35B-A3B")
    assert done.returncode == 0 and "megakernel plan:\nqwen3_5 on emulated, sm_90\n" in done.stdout, (
        done.stderr
    )
    bad = show("Qwen3.5-35B-A3B", SLOTS="no_such_slot")
    assert bad.returncode == 2 and "unknown megakernel slot 'no_such_slot'" in bad.stderr
