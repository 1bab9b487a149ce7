# SPDX-License-Identifier: Apache-2.0
"""The quantiser: nearest codes by search, scales shared where servers fuse, small errors, the same bytes."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs the built environment: ./sglang.sh build --profile cpu")

from safetensors.torch import load_file  # noqa: E402

from sglang_fork.checkpoints.train import quantise, save  # noqa: E402
from sglang_fork.paths import ROOT  # noqa: E402

FOLDER = ROOT / "test" / "checkpoints"
TEXT = "\n".join((FOLDER / "held_out.txt").read_text("ascii").splitlines()[:2])
GRID = torch.tensor([*quantise.E2M1, *(-value for value in quantise.E2M1)])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("quantised") / "qwen3_5"
    quantise.write(FOLDER / "qwen3_5", out, TEXT)
    return out


def nvfp4(tensors: dict, layer: str):
    packed = tensors[f"{layer}.weight"]
    codes = torch.stack((packed & 15, packed >> 4), -1).flatten(-2).long()
    scale = tensors[f"{layer}.weight_scale"].float().repeat_interleave(16, 1)
    return GRID[codes] * scale * tensors[f"{layer}.weight_scale_2"]


def test_codes_are_the_nearest_and_ties_go_to_even_codes() -> None:
    drawn = random.randrange(2**31)
    print(f"seed {drawn}")
    values = torch.empty(4000).uniform_(-7, 7, generator=torch.Generator().manual_seed(drawn))
    found = GRID[quantise.e2m1_codes(values).long()]
    best = (values[:, None] - GRID).abs().amin(1)
    torch.testing.assert_close((values - found).abs(), best)
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -0.25, -5.0, -0.1])
    assert quantise.e2m1_codes(ties).tolist() == [0, 2, 2, 4, 4, 6, 6, 0, 14, 0]


@pytest.mark.parametrize(("amax", "rounded"), [(1.0, 1.0), (1.01, 1.125), (0.3, 0.3125), (7.9, 8.0)])
def test_an_inputs_largest_value_is_rounded_up(amax: float, rounded: float) -> None:
    assert quantise.rounded_up(amax) == rounded


def test_dequantised_weights_are_near(made: Path) -> None:
    tensors, model = load_file(made / "model.safetensors"), save.load(FOLDER / "qwen3_5")
    weights = model.state_dict()
    for name, tensor in tensors.items():
        layer = name.removesuffix(".weight")
        if (
            tensor.dtype == torch.float8_e4m3fn
            and f"{layer}.weight_scale_2" not in tensors
            and "scale" not in name
        ):
            error = (tensor.float() * tensors[f"{layer}.weight_scale"] - weights[name]).norm()
            assert error / weights[name].norm() < 0.03, name
    for expert in range(4):
        layer = f"model.layers.2.mlp.experts.{expert}"
        gate, up = weights["model.layers.2.mlp.experts.gate_up_proj"][expert].chunk(2)
        down = weights["model.layers.2.mlp.experts.down_proj"][expert]
        for part, weight in (("gate_proj", gate), ("up_proj", up), ("down_proj", down)):
            error = (nvfp4(tensors, f"{layer}.{part}") - weight).norm() / weight.norm()
            assert 0.01 < error < 0.12, (layer, part, error)


def test_scales_are_shared_where_a_server_fuses(made: Path) -> None:
    tensors = load_file(made / "model.safetensors")
    for group in quantise.FUSED:
        found = [name for name in tensors if name.endswith(f"{group[0]}.weight_scale")]
        assert found
        for name in found:
            stem = name.removesuffix(f"{group[0]}.weight_scale")
            assert len({float(tensors[f"{stem}{part}.weight_scale"]) for part in group}) == 1
    gate = "model.layers.0.mlp.experts.1.gate_proj.weight_scale_2"
    assert tensors[gate] == tensors[gate.replace("gate_proj", "up_proj")]


def test_the_account_names_every_quantised_layer_and_no_other(made: Path) -> None:
    tensors = load_file(made / "model.safetensors")
    account = json.loads((made / "hf_quant_config.json").read_text())["quantization"]
    assert account["quant_algo"] == "MIXED_PRECISION"
    for layer, entry in account["quantized_layers"].items():
        wanted = torch.uint8 if entry["quant_algo"] == "NVFP4" else torch.float8_e4m3fn
        assert tensors[f"{layer}.weight"].dtype == wanted, layer
    quantised = {
        name for name, tensor in tensors.items() if name.endswith(".weight") and tensor.element_size() == 1
    }
    assert {name.removesuffix(".weight") for name in quantised} == set(account["quantized_layers"])
    assert not any(name.startswith("mtp.") for name in account["quantized_layers"])
    own = json.loads((made / "config.json").read_text())["quantization_config"]
    assert own["quantized_layers"] == account["quantized_layers"] and own["quant_method"] == "modelopt"


def test_the_same_bytes_again(made: Path, tmp_path: Path) -> None:
    quantise.write(FOLDER / "qwen3_5", tmp_path / "again", TEXT)
    for name in ("model.safetensors", "config.json", "hf_quant_config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (made / name).read_bytes()
