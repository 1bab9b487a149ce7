# SPDX-License-Identifier: Apache-2.0
"""The covered step of DeepSeek-V4.1, GLM and Kimi K3 in real SGLang on the CPU: an all-stock plan is
SGLang's forward bit for bit, the kernels agree with their twins, a planted wrong kernel is named.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e
SCENARIOS = Path(__file__).with_name("family_scenarios.py")
CHECKPOINTS = {"deepseek_v4": "deepseek_v41", "glm_moe_dsa": "glm_moe_dsa", "kimi_k3": "kimi_k3"}
KERNELS = {"deepseek_v4": {"mhc"}, "glm_moe_dsa": {"sparse_mla"}, "kimi_k3": set()}
# Listed too, and left to its stock twin by the plan: the CuTe DSL has no emulation.
ON_GPUS_ALONE = {"glm_moe_dsa": {"q_norm"}}


@pytest.fixture(scope="module", params=sorted(CHECKPOINTS))
def seen(request, tmp_path_factory):
    from sglang_fork.checkpoints import make

    family = request.param
    checkpoint = make.make(CHECKPOINTS[family], tmp_path_factory.mktemp("tiny") / family)
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            str(SCENARIOS),
            family,
            str(checkpoint),
            ",".join(sorted(KERNELS[family] | ON_GPUS_ALONE.get(family, set()))),
        ],
        env=os.environ | {"PYTHONPATH": str(SCENARIOS.parents[3] / "python")},
        capture_output=True,
        text=True,
        timeout=600,
    )
    results = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert done.returncode == 0 and results, done.stderr[-4000:]
    return {"family": family, **json.loads(results[0].removeprefix("RESULT "))}


def slots_of(family):
    return importlib.import_module(f"sglang.srt.mega.models.{family}.slots").SLOTS


def test_every_slot_stands_somewhere_in_the_model(seen):
    assert set(seen["slots"]) == set(slots_of(seen["family"]))


def test_the_plan_runs_the_familys_kernels_and_no_other(seen):
    assert {frozenset(slots) for slots in seen["plan"].values()} == {frozenset(KERNELS[seen["family"]])}


def test_an_all_stock_plan_is_sglangs_forward_bit_for_bit(seen):
    compared, worst = seen["stock"]["step"]
    assert compared > 3 and worst == 0.0
    assert seen["covered_tokens"] == seen["stock_tokens"]


def test_the_kernels_agree_with_their_twins_within_the_declared_numerics(seen):
    for name in KERNELS[seen["family"]]:
        compared, worst = seen["kernels"][name]
        assert compared > 0 and 0 < worst <= slots_of(seen["family"])[name].numerics.rtol
    assert seen["kernels_tokens"] == seen["stock_tokens"], "parity mode keeps the twins' results"


def test_without_parity_the_kernels_logits_stay_near_stocks(seen):
    import torch

    mega, stock = torch.tensor(seen["kernels_logits"]), torch.tensor(seen["stock_logits"])
    moved = (mega - stock).abs().max() / stock.abs().max()
    assert torch.isfinite(mega).all() and moved <= 0.05
    assert (moved > 0) == bool(KERNELS[seen["family"]])


def test_a_right_kernel_passes_in_every_slot_of_every_layer(seen):
    assert all(seen["right_calls"][slot] > 0 for slot in seen["slots"])
    assert {slot: seen["right"][slot][1] for slot in seen["slots"]} == dict.fromkeys(seen["slots"], 0.0)
    assert seen["right_tokens"] == [tokens[:2] for tokens in seen["stock_tokens"]]


def test_a_wrong_kernel_is_named_with_slot_layer_and_rank(seen):
    assert {slot for slot, *_ in seen["planted"]} == set(seen["slots"])
    for slot, layer, message in seen["planted"]:
        assert f"slot {slot}, layer {layer}, rank 0: " in message, message
