# SPDX-License-Identifier: Apache-2.0
"""Qwen3.5's covered step in real SGLang on the CPU: stock stages bit for bit, planted kernels named, coverage
counted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e
SCENARIOS = Path(__file__).with_name("scenarios.py")


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    from sglang_fork.checkpoints import make

    checkpoint = make.make("qwen3_5", tmp_path_factory.mktemp("tiny") / "qwen3_5")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(SCENARIOS), str(checkpoint)],
        env=os.environ | {"PYTHONPATH": str(SCENARIOS.parents[3] / "python")},
        capture_output=True,
        text=True,
        timeout=600,
    )
    results = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert done.returncode == 0 and results, done.stderr[-4000:]
    return json.loads(results[0].removeprefix("RESULT "))


def test_a_step_of_stock_stages_is_sglangs_forward_bit_for_bit(seen):
    compared, worst = seen["parity_stock_compared"]
    assert worst == 0.0
    # Five decode steps: logits, and each layer's two state or cache buffers.
    assert compared == 5 * (1 + 2 * len(seen["layers"]))
    assert seen["parity_stock"] == seen["stock"]
    assert {"gdn", "attention"} == set(seen["layers"])


def test_a_right_kernel_of_each_slot_passes_parity_at_every_layer(seen):
    layers = seen["layers"]
    assert seen["parity_right_calls"] == {
        "gdn": 5 * layers.count("gdn"),
        "attention": 5 * layers.count("attention"),
        "moe": 5 * len(layers),
    }
    assert set(seen["parity_right_worst"].values()) == {0.0}
    assert seen["parity_right"] == seen["stock"]


def test_a_wrong_kernel_planted_in_each_slot_is_named_with_its_layer_and_rank(seen):
    assert {slot for slot, *_ in seen["planted"]} == {"gdn", "attention", "moe"}
    for slot, layer, kind, message in seen["planted"]:
        assert f"slot {slot}, layer {layer}, rank 0: " in message, (kind, message)
        assert ("output" if kind == "wrong_result" else "state" if slot == "gdn" else "values") in message


def test_without_parity_the_kernels_run_alone_and_the_tokens_are_sglangs(seen):
    assert seen["kernels"] == seen["stock"]
    assert seen["kernel_calls"] == 5 * 2 * len(seen["layers"])


def test_nine_rows_run_stock_and_are_counted_so(seen):
    assert seen["wide"] == seen["stock_wide"]
    assert seen["wide_counted"] == {"decode False": 2}
    assert seen["narrow_share"] > 0
