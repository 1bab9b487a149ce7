# SPDX-License-Identifier: Apache-2.0
"""SGLang reads the ModelOpt copy of the trained Qwen3.5 as the quantiser wrote it."""

import re
from collections.abc import Callable
from typing import Any

import pytest

FP8 = re.compile(r"\.(in_proj_qkvz|out_proj|qkv_proj|o_proj|shared_expert\.(gate_up_proj|down_proj))$")


@pytest.fixture
def seen(loaded: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    return loaded("quantised")


def test_each_layer_has_the_method_of_its_format(seen: dict[str, Any]) -> None:
    assert seen["quantization"] == "modelopt_mixed"
    for layer, method in seen["methods"].items():
        if layer.endswith(".experts"):
            assert method == "ModelOptNvFp4FusedMoEMethod"
        elif FP8.search(layer):
            assert method == "ModelOptFp8LinearMethod", layer
        else:
            assert method.startswith("Unquantized"), layer
    assert sum(layer.endswith(".experts") for layer in seen["methods"]) == 4
    assert sum(bool(FP8.search(layer)) for layer in seen["methods"]) == 4 * 4
    assert all(method.startswith("Unquantized") for method in seen["draft_methods"]), "the MTP layer is BF16"


def test_every_loaded_parameter_is_the_copys_and_none_is_left_over(seen: dict[str, Any]) -> None:
    """Codes and scales of the target and of its MTP layer, to the bit, over poisoned memory."""
    assert seen["differ"] == [] and seen["unused"] == []


def test_dequantised_layers_are_as_near_to_the_trained_weights_as_the_formats_allow(
    seen: dict[str, Any],
) -> None:
    assert seen["beyond"] == [], "beyond half a step of E4M3, or of E2M1 with its block's scale"
    assert len(seen["errors"]) == 4 * 4 + 2 * 4
    for layer, error in seen["errors"].items():
        low, high = (0.05, 0.12) if ".experts." in layer else (0.01, 0.04)
        assert low < error < high, (layer, error)


def test_processing_for_a_gpu_rounds_nothing_again(seen: dict[str, Any]) -> None:
    """Fused FP8 layers share their scale, so that SGLang's common one changes no code; Marlin's experts."""
    assert seen["processed_differ"] == []
    assert len(seen["products"]) == 4 and max(seen["products"].values()) < 0.01, seen["products"]
