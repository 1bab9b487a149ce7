# SPDX-License-Identifier: Apache-2.0
"""NVFP4 dense and expert layers go where each compute capability can run them; 12.0 and 12.1 are not one."""

import logging
from types import SimpleNamespace

import configs
import pytest

from sglang.srt.arg_groups import nvfp4_capability as table
from sglang.srt.arg_groups import overrides
from sglang.srt.arg_groups.model_overrides import nemotron_h
from sglang.srt.layers.moe.utils import MoeRunnerBackend
from sglang.srt.layers.quantization import fp4_utils, modelopt_quant
from sglang.srt.layers.quantization.compressed_tensors import compressed_tensors

CHOICES = {
    (8, 0): ("marlin", "marlin"),
    (9, 0): ("marlin", "marlin"),
    (10, 0): ("flashinfer_cutedsl", "auto"),
    (10, 3): ("flashinfer_cutedsl", "auto"),
    (11, 0): ("flashinfer_cutlass", "flashinfer_cutlass"),
    (12, 0): ("flashinfer_cutlass", "flashinfer_cutlass"),
    (12, 1): ("marlin", "marlin"),
}


@pytest.mark.parametrize(("capability", "backends"), CHOICES.items())
def test_the_table(capability, backends):
    assert (table.choose("dense", capability).backend, table.choose("moe", capability).backend) == backends
    assert table.is_weight_only("moe", capability) == (backends[1] == "marlin")
    assert table.choose("dense", capability).reason


def test_too_old_a_device_is_refused_with_the_way_out():
    with pytest.raises(ValueError, match=r"8\.0 or newer, this device has 7\.5"):
        table.choose("dense", (7, 5))
    assert not table.is_weight_only("moe", (7, 5))


def test_choice_and_reason_are_logged_once(caplog):
    table.report.cache_clear()
    caplog.set_level(logging.INFO, logger=table.__name__)
    for _ in range(3):
        table.report("moe", "marlin", (12, 1))
    table.report("dense", "flashinfer_cutlass", (12, 1))
    table.report("moe", "flashinfer_trtllm", (10, 0))
    first, second, third = caplog.records
    assert "compute capability 12.1: marlin" in first.getMessage() and "zeros or NaN" in first.getMessage()
    assert second.levelno == logging.WARNING and "flashinfer_cutlass was asked for" in second.getMessage()
    assert third.levelno == logging.INFO


@pytest.mark.parametrize(("capability", "backends"), CHOICES.items())
@pytest.mark.parametrize("requested", ["auto", "flashinfer_cutlass"])
def test_dense_layers_take_the_tables_choice(monkeypatch, on_device, capability, backends, requested):
    on_device(capability, fp4_utils)
    kernel = SimpleNamespace(kernel=SimpleNamespace(fp4_gemm_runner_backend=requested))
    monkeypatch.setattr(fp4_utils, "get_exec", lambda: kernel)
    monkeypatch.setattr(fp4_utils, "FP4_GEMM_RUNNER_BACKEND", None)
    fp4_utils.initialize_fp4_gemm_config()
    expected = backends[0] if requested == "auto" else requested
    assert fp4_utils.get_fp4_gemm_runner_backend().value == expected


def moe_backend(on_device, capability, quantization, requested="auto"):
    on_device(capability, overrides)
    view = SimpleNamespace(moe_runner_backend=requested, quantization=quantization, moe_a2a_backend="none")
    return overrides._moe_runner_backend_quant_constraints(view).get("moe_runner_backend", requested)


@pytest.mark.parametrize("quantization", ["modelopt_fp4", "modelopt_mixed"])
def test_modelopt_experts_of_a_gb10_go_to_marlin(on_device, quantization):
    assert moe_backend(on_device, (12, 1), quantization) == "marlin"


def test_modelopt_experts_of_every_other_device_keep_upstreams_choice(on_device):
    assert moe_backend(on_device, (12, 0), "modelopt_fp4") == "flashinfer_cutlass"
    assert moe_backend(on_device, (11, 0), "modelopt_fp4") == "flashinfer_cutlass"
    assert moe_backend(on_device, (10, 3), "modelopt_fp4") == "auto"
    assert moe_backend(on_device, (9, 0), "modelopt_fp4") == "auto"
    assert moe_backend(on_device, (12, 1), "fp8") == "auto"
    assert moe_backend(on_device, (12, 1), "modelopt_fp4", "flashinfer_cutlass") == "flashinfer_cutlass"


@pytest.mark.parametrize(
    ("capability", "backend"),
    [((9, 0), "marlin"), ((10, 0), "flashinfer_trtllm"), ((12, 0), "flashinfer_trtllm"), ((12, 1), "marlin")],
)
def test_the_modelopt_method_resolves_auto_by_the_table(monkeypatch, on_device, capability, backend):
    """Where no argument rule spoke (a checkpoint that names its own quantization)."""
    on_device(capability, modelopt_quant)
    monkeypatch.setattr(modelopt_quant, "get_moe_runner_backend", lambda: MoeRunnerBackend.AUTO)
    monkeypatch.setattr(
        modelopt_quant, "get_moe_a2a_backend", lambda: SimpleNamespace(is_megamoe=lambda: True)
    )
    method = modelopt_quant.ModelOptNvFp4FusedMoEMethod(SimpleNamespace(group_size=16))
    method.create_moe_runner(SimpleNamespace(), SimpleNamespace())
    assert method._moe_runner_backend.value == backend


@pytest.mark.parametrize(
    ("capability", "backend"),
    [
        ((9, 0), "marlin"),
        ((10, 0), "flashinfer_trtllm"),
        ((12, 0), "flashinfer_cutlass"),
        ((12, 1), "marlin"),
    ],
)
def test_nemotron_h(monkeypatch, on_device, capability, backend):
    on_device(capability, nemotron_h)
    cfg = SimpleNamespace(
        quantization="modelopt_fp4", enable_eplb=False, ep_num_redundant_experts=0, init_expert_location="trivial",  # noqa: E501
        moe_a2a_backend="none", moe_runner_backend="auto", speculative_algorithm=None,
    )  # fmt: skip
    hf = SimpleNamespace(architectures=["NemotronHForCausalLM"], mlp_hidden_act="relu2")
    monkeypatch.setattr(nemotron_h, "resolving_view", lambda args: cfg)
    monkeypatch.setattr(
        nemotron_h, "model_config_of", lambda args: SimpleNamespace(quantization="modelopt_fp4")
    )
    monkeypatch.setattr(nemotron_h, "is_attention_backend_not_set", lambda cfg: False)
    assert nemotron_h._nemotron_h_overrides(None, hf)["moe_runner_backend"] == backend


def moe_scheme(monkeypatch, on_device, capability, requested="auto"):
    on_device(capability, compressed_tensors)
    monkeypatch.setattr(compressed_tensors.torch.cuda, "get_device_capability", lambda *a: capability)
    monkeypatch.setattr(compressed_tensors, "get_moe_runner_backend", lambda: MoeRunnerBackend(requested))
    monkeypatch.setattr(compressed_tensors, "CompressedTensorsW4A4Nvfp4MoE", Native)
    stored = configs.NVFP4_COMPRESSED | {"ignore": []}
    config = compressed_tensors.CompressedTensorsConfig.from_config(stored)
    return type(config.get_moe_scheme(Linear(), "model.layers.0.mlp.experts")).__name__


class Native:
    """Stands for the W4A4 scheme, which asks for a real Blackwell device when it is made."""

    @staticmethod
    def get_min_capability():
        return 100


class Linear(compressed_tensors.torch.nn.Module):
    pass


WEIGHT_ONLY = "CompressedTensorsW4A16Nvfp4MoE"


@pytest.mark.parametrize(
    ("capability", "scheme"),
    [
        ((9, 0), WEIGHT_ONLY),
        ((10, 0), "Native"),
        ((10, 3), "Native"),
        ((12, 0), "Native"),
        ((12, 1), WEIGHT_ONLY),
    ],
)
def test_compressed_tensors_experts(monkeypatch, on_device, capability, scheme):
    assert moe_scheme(monkeypatch, on_device, capability) == scheme


def test_compressed_tensors_experts_honour_the_flag(monkeypatch, on_device):
    assert moe_scheme(monkeypatch, on_device, (12, 0), "marlin") == WEIGHT_ONLY
    assert moe_scheme(monkeypatch, on_device, (12, 1), "flashinfer_cutlass") == "Native"
