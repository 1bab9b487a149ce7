# SPDX-License-Identifier: Apache-2.0
"""Nemotron-H (ModelOpt) and Mistral-Small-4 (compressed-tensors, its own names) load in NVFP4 as on a GB10.

Argument resolution, classes, loader, quantization methods and Marlin layout are SGLang's for compute
capability 12.1; block scales span E4M3's whole range, and the experts' global scales differ.
"""

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.parametrize(
    ("load", "model", "layers"),
    [
        ("nemotron_h", "NemotronHForCausalLM", 5),
        ("Mistral-Small-4", "MistralLarge3ForCausalLM", 8),
    ],
)
def test_every_layer_is_the_checkpoints(
    loaded: Callable[[str], dict[str, Any]], load: str, model: str, layers: int
) -> None:
    seen = loaded(load)
    assert seen["class"] == model
    assert len(seen["errors"]) == layers
    assert seen["self_tested"] >= 3
    assert max(seen["errors"].values()) < 0.01, seen["errors"]


def test_a_post_quantized_qwen3_5_and_its_draft(loaded: Callable[[str], dict[str, Any]]) -> None:
    """The presets' lists on SGLang's own classes: NVFP4 projections, FP8 layers, one head for both models."""
    seen = loaded("qwen3_5")
    assert (seen["target"], seen["draft"]) == ("Qwen3_5MoeForCausalLM", "Qwen3_5ForCausalLMMTP")
    for layer, error in seen["errors"].items():
        assert error < (0.06 if layer.startswith("fp8") else 0.01), seen["errors"]
        assert error > 0.01 or not layer.startswith("fp8"), f"{layer} has no FP8 activations: {error}"
    assert seen["self_tested"] >= 1
    assert seen["head_untouched"], "the draft's own head was quantized"
    assert seen["draft_fp8"] and seen["same_logits"]
