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


def test_every_slot_has_its_kernel_at_every_width(seen):
    assert set(map(tuple, seen["real_slots"].values())) == {("attention", "gdn", "moe")}
    assert set(seen["real_slots"]) == {str(rows) for rows in range(1, 9)}


def test_the_kernels_agree_with_their_stock_twins_within_the_declared_numerics(seen):
    from sglang.srt.mega.models.qwen3_5.slots import SLOTS

    for name, slot in SLOTS.items():
        assert 0 < seen["real_worst"][name] <= slot.numerics.rtol
    assert seen["real_worst"]["step"] == 0.0
    assert seen["real_parity"] == [seen["stock"][:1], seen["stock"]]


def test_rows_of_the_moe_choose_as_stock_does_or_tie(seen):
    from sglang.srt.mega.models.qwen3_5.slots import SLOTS

    # Five decode steps of one and of three prompts, every layer.
    assert seen["real_rows"] == {"moe": 5 * (1 + 3) * len(seen["layers"])}
    assert len(seen["real_ties"]) <= seen["real_rows"]["moe"] // 4
    assert all(margin <= SLOTS["moe"].numerics.ties for *_, margin in seen["real_ties"])


def test_greedy_tokens_are_stocks_or_first_differ_at_a_tie(seen):
    """BF16 rounds the step's logits to 8 bits; a first difference must lie within what the logits moved."""
    import torch

    mega, stock = torch.tensor(seen["real_logits"]), torch.tensor(seen["stock_logits"])
    moved = (mega - stock).abs().max()
    assert 0 < moved <= 0.05 * stock.abs().max()
    for arm in (mega, stock):
        assert torch.isfinite(arm).all()
    top = stock.topk(2, dim=-1)
    clear = top.values[:, 0] - top.values[:, 1] > 2 * moved
    assert clear.any(), "no row of this checkpoint tells the arms apart"
    assert torch.equal(mega.argmax(-1)[clear], stock.argmax(-1)[clear])
    assert [row[0] for row in seen["real"][1]] == [row[0] for row in seen["stock"]], "the prefill is stock's"


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
