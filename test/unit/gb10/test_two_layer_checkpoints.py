# SPDX-License-Identifier: Apache-2.0
"""Nemotron-H (ModelOpt) and Mistral-Small-4 (compressed-tensors, its own names) load in NVFP4 as on a GB10.

Argument resolution, classes, loader, quantization methods and Marlin layout are SGLang's for compute
capability 12.1; block scales span E4M3's whole range, and the experts' global scales differ.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "load_nvfp4.py"


@pytest.mark.parametrize(
    ("family", "folder", "model", "layers"),
    [
        ("nemotron_h", "Nemotron", "NemotronHForCausalLM", 5),
        # SGLang picks Mistral's own format by the folder's name.
        ("mistral_small_4", "Mistral-Small-4", "MistralLarge3ForCausalLM", 8),
    ],
)
def test_every_layer_is_the_checkpoints(tmp_path, family, folder, model, layers):
    at = tmp_path / folder
    at.mkdir()
    command = [sys.executable, "-W", "ignore", str(SCRIPT), family, str(at)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["class"] == model
    assert len(seen["errors"]) == layers
    assert seen["self_tested"] >= 3
    assert max(seen["errors"].values()) < 0.01, seen["errors"]


def test_a_post_quantized_qwen3_5_and_its_draft(tmp_path):
    """The presets' lists on SGLang's own classes: NVFP4 projections, FP8 layers, one head for both models."""
    script = SCRIPT.with_name("load_qwen3_5.py")
    command = [sys.executable, "-W", "ignore", str(script), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert (seen["target"], seen["draft"]) == ("Qwen3_5MoeForCausalLM", "Qwen3_5ForCausalLMMTP")
    for layer, error in seen["errors"].items():
        assert error < (0.06 if layer.startswith("fp8") else 0.01), seen["errors"]
        assert error > 0.01 or not layer.startswith("fp8"), f"{layer} has no FP8 activations: {error}"
    assert seen["self_tested"] >= 1
    assert seen["head_untouched"], "the draft's own head was quantized"
    assert seen["draft_fp8"] and seen["same_logits"]
