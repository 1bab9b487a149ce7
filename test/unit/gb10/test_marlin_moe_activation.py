# SPDX-License-Identifier: Apache-2.0
"""What the Marlin MoE runner is asked to compute, it computes or refuses by name."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from sglang.srt.layers.moe import marlin_activation
from sglang.srt.layers.moe.moe_runner import marlin
from sglang.srt.layers.moe.moe_runner.base import MoeRunnerConfig


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"activation": "gelu"},
        {"activation": "gelu_tanh"},
        {"activation": "situ", "gemm1_alpha": 4.0, "gemm1_clamp_limit": 25.0},
        {"swiglu_limit": 10.0},
        {"gemm1_clamp_limit": 7.0},
        {"gemm1_clamp_limit": 7.0, "swiglu_limit": 7.0},
        {"gemm1_alpha": 1.702, "gemm1_beta": 1.0, "gemm1_clamp_limit": 7.0},
        {"activation": "relu2", "is_gated": False},
        {"activation": "gelu", "is_gated": False},
        {"activation": "silu", "is_gated": False},
    ],
)
def test_accepted(arguments):
    marlin_activation.check(MoeRunnerConfig(**arguments))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"activation": "relu2"}, "'relu2'"),
        ({"activation": "situ", "is_gated": False}, "'situ'"),
        ({"activation": "swiglu_step"}, "'swiglu_step'"),
        ({"apply_router_weight_on_input": True}, "router weight"),
        ({"activation": "gelu", "swiglu_limit": 10.0}, "swiglu_limit"),
        ({"activation": "relu2", "is_gated": False, "swiglu_limit": 10.0}, "swiglu_limit"),
        ({"activation": "gelu", "gemm1_alpha": 1.7}, "gemm1_alpha"),
        ({"activation": "silu", "is_gated": False, "gemm1_clamp_limit": 7.0}, "gemm1_clamp_limit"),
        ({"gemm1_beta": 1.0}, "gemm1_beta"),
        ({"activation": "situ", "gemm1_beta": 0.5}, "gemm1_beta"),
        ({"gemm1_alpha": 1.702}, "gemm1_alpha"),
        ({"gemm1_clamp_limit": 7.0, "swiglu_limit": 10.0}, "disagree"),
    ],
)
def test_refused_by_name(arguments, named):
    with pytest.raises(ValueError, match=named):
        marlin_activation.check(MoeRunnerConfig(**arguments))


def run(monkeypatch, **arguments):
    """The arguments that reach the kernels, with the runner as the patch leaves it."""
    from sglang.srt.layers.moe.fused_moe_triton import fused_marlin_moe
    from sglang.srt.layers.quantization import marlin_utils

    seen = {}

    def record(hidden_states, **kwargs):
        seen.update(kwargs)
        return hidden_states

    monkeypatch.setattr(fused_marlin_moe, "fused_marlin_moe", record)
    monkeypatch.setattr(marlin_utils, "marlin_make_workspace", lambda device, max_blocks_per_sm: None)
    topk = SimpleNamespace(topk_weights=None, topk_ids=None, router_logits=None)
    scales = torch.empty(0, dtype=torch.float8_e4m3fn)
    info = marlin.MarlinMoeQuantInfo(None, None, scales, scales, None, None, weight_bits=4)
    dispatch = SimpleNamespace(hidden_states=torch.zeros(1, 8, dtype=torch.bfloat16), topk_output=topk)
    marlin.fused_experts_none_to_marlin(dispatch, info, MoeRunnerConfig(**arguments))
    return seen


@pytest.mark.parametrize("name", ["swiglu_limit", "gemm1_clamp_limit"])
def test_either_clamp_reaches_the_kernel(monkeypatch, name):
    assert run(monkeypatch, **{name: 7.0})["clamp_limit"] == 7.0


def test_alpha_and_beta_reach_the_kernel(monkeypatch):
    seen = run(monkeypatch, gemm1_alpha=1.702, gemm1_beta=0.5, gemm1_clamp_limit=7.0)
    assert (seen["gemm1_alpha"], seen["gemm1_beta"], seen["clamp_limit"]) == (1.702, 0.5, 7.0)
    assert run(monkeypatch, gemm1_alpha=1.702, gemm1_clamp_limit=7.0)["gemm1_beta"] == 1.0


def test_the_routed_scale_reaches_the_kernel_once(monkeypatch):
    """``moe_sum_reduce`` applies it; the top-k must not, or the experts count 6.25-fold."""
    from sglang.srt.layers.moe.fused_moe_triton.layer import _fuses_routed_scaling_factor_in_topk
    from sglang.srt.layers.moe.utils import MoeRunnerBackend
    from sglang.srt.layers.quantization.modelopt_quant import ModelOptNvFp4FusedMoEMethod

    assert run(monkeypatch, routed_scaling_factor=2.5)["routed_scaling_factor"] == 2.5
    method = object.__new__(ModelOptNvFp4FusedMoEMethod)
    assert not _fuses_routed_scaling_factor_in_topk(method, MoeRunnerBackend.MARLIN)
    assert _fuses_routed_scaling_factor_in_topk(method, MoeRunnerBackend.FLASHINFER_CUTLASS)
    assert not _fuses_routed_scaling_factor_in_topk(object(), MoeRunnerBackend.MARLIN)


def test_an_unknown_activation_stops_the_runner(monkeypatch):
    with pytest.raises(ValueError, match="no gated activation 'relu2'"):
        run(monkeypatch, activation="relu2")


def test_gelu_is_in_the_fused_function():
    """The branch is taken by name; the numbers are held against the kernels by ``gpu_parity.py``."""
    x = torch.randn(5, 16)
    out = torch.empty(5, 8)
    for name, approximate in (("gelu", "none"), ("gelu_tanh", "tanh")):
        got = marlin_activation.gelu(name, True, x, out)
        assert torch.allclose(got, F.gelu(x[:, :8], approximate=approximate) * x[:, 8:], atol=1e-6)
        assert torch.equal(marlin_activation.gelu(name, False, x, out), F.gelu(x, approximate=approximate))


def test_the_reference_clamps_before_the_product():
    x = torch.tensor([[30.0, -30.0, 50.0, -50.0]])
    plain = marlin_activation.reference(MoeRunnerConfig(), x)
    clamped = marlin_activation.reference(MoeRunnerConfig(swiglu_limit=10.0), x)
    assert torch.allclose(clamped[0, 0], F.silu(torch.tensor(10.0)) * 10.0)
    assert plain[0, 0] == 1500.0


def test_the_seams_import_first_on_a_cuda_machine(loads):
    """CUDA's branches import more: the runner's module, imported first, once met itself half-made."""
    assert loads, "loads.py imports it before anything else of SGLang, and would have failed"
