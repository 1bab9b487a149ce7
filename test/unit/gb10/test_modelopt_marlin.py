# SPDX-License-Identifier: Apache-2.0
"""ModelOpt NVFP4 with AWQ: the input scale is applied on the Marlin path, as it is on every other."""

from types import SimpleNamespace

import pytest
import torch

from sglang.srt.layers.quantization import modelopt_quant


@pytest.mark.parametrize("awq", [False, True])
def test_the_input_scale_reaches_the_marlin_kernel(monkeypatch, awq):
    seen = {}

    def kernel(*, input, **kwargs):
        seen["x"] = input
        return input

    monkeypatch.setattr(modelopt_quant, "apply_fp4_marlin_linear", kernel)
    backend = SimpleNamespace(is_marlin=lambda: True)
    monkeypatch.setattr(modelopt_quant, "get_fp4_gemm_runner_backend", lambda: backend)
    method = modelopt_quant.ModelOptFp4LinearMethod.__new__(modelopt_quant.ModelOptFp4LinearMethod)
    method.quant_config = SimpleNamespace(is_awq=awq)
    layer = SimpleNamespace(
        pre_quant_scale=torch.tensor([2.0, 0.5]),
        weight=None,
        weight_scale=None,
        weight_global_scale=None,
        workspace=None,
        output_size_per_partition=2,
        input_size_per_partition=2,
    )
    x = torch.tensor([[1.0, 4.0]])
    method.apply(layer, x)
    assert torch.equal(seen["x"], x * layer.pre_quant_scale if awq else x)
