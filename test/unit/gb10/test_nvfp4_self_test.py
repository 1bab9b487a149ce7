# SPDX-License-Identifier: Apache-2.0
"""The start-up self-test: a right product passes and warms, a wrong, zero or NaN one stops the server."""

import ast
from pathlib import Path

import pytest
import torch

import sglang.srt.model_loader as model_loader
from sglang.srt.environ import envs
from sglang.srt.layers.quantization import nvfp4_numerics, nvfp4_self_test


class Layer(torch.nn.Module):
    """A dense NVFP4 layer as a ModelOpt checkpoint leaves it."""

    def __init__(self, rows=64, columns=64, scale_2=0.01):
        super().__init__()
        torch.manual_seed(0)
        packed, block_scale, _ = nvfp4_numerics.quantize(torch.randn(rows, columns).bfloat16())
        self.weight = torch.nn.Parameter(packed, requires_grad=False)
        self.weight_scale = torch.nn.Parameter(block_scale, requires_grad=False)
        self.weight_scale_2 = torch.nn.Parameter(torch.tensor([scale_2]), requires_grad=False)
        self.params_dtype = torch.bfloat16


class Method:
    """A kernel: the exact product, spoiled by ``spoil``."""

    def __init__(self, layer, spoil=lambda product: product):
        self.weight = nvfp4_numerics.dequantize(
            layer.weight, layer.weight_scale, layer.weight_scale_2.float()
        )
        self.spoil, self.rows = spoil, []

    def apply(self, layer, x):
        self.rows.append(x.shape[0])
        return self.spoil((x.float() @ self.weight.T).to(x.dtype))


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(nvfp4_self_test, "_dense_backend", lambda layer, method: "test")
    nvfp4_self_test.reset()
    yield
    nvfp4_self_test.reset()


def check(layer, method):
    with nvfp4_self_test.checked(layer, method):
        pass


def test_a_right_product_passes_once_and_warms_every_row_count():
    layer = Layer()
    method = Method(layer)
    check(layer, method)
    assert method.rows == [nvfp4_self_test.TEST_ROWS, *nvfp4_self_test.WARM_ROWS]
    again = Method(Layer())
    check(Layer(), again)
    assert again.rows == [], "the same signature has passed"


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (torch.zeros_like, "all zero"),
        (lambda product: product * float("nan"), "off by nan"),
        (lambda product: product * 2, "off by"),
        (lambda product: product.roll(1, dims=-1), "off by"),
    ],
)
def test_a_wrong_product_stops_the_server_with_the_way_out(spoil, why):
    layer = Layer()
    with pytest.raises(nvfp4_self_test.Nvfp4SelfTestError, match=why) as caught:
        check(layer, Method(layer, spoil))
    assert "--fp4-gemm-backend" in str(caught.value) and "SGLANG_NVFP4_SELF_TEST=0" in str(caught.value)


@pytest.mark.parametrize(("code", "why"), [(0x7F, "NaN"), (0x85, "negative")])
def test_block_scales_that_no_kernel_reads_are_refused(code, why):
    layer = Layer()
    layer.weight_scale.data.view(torch.uint8)[3, 1] = code
    with pytest.raises(nvfp4_self_test.Nvfp4SelfTestError, match=why):
        check(layer, None)


def test_it_can_be_switched_off_and_looks_at_no_other_layer():
    layer = Layer()
    with envs.SGLANG_NVFP4_SELF_TEST.override(False):
        check(layer, Method(layer, torch.zeros_like))
    plain = torch.nn.Linear(4, 4)
    check(plain, None)


def test_the_loader_wraps_each_layers_processing():
    tree = ast.parse((Path(model_loader.__path__[0]) / "loader.py").read_text())
    wrapped = [
        n
        for n in ast.walk(tree)
        if isinstance(n, ast.With)
        and any("nvfp4_self_test.checked" in ast.unparse(item.context_expr) for item in n.items)
        and "process_weights_after_loading" in ast.unparse(n)
    ]
    assert len(wrapped) == 1


@pytest.mark.parametrize("size", [3, 512, 1001, 248320])
def test_the_rows_that_are_compared_lie_in_the_weight_in_the_loaders_default_dtype(size):
    """Models load with BF16 as torch's default dtype, in which 511 is 512."""
    torch.set_default_dtype(torch.bfloat16)
    try:
        rows = nvfp4_self_test._spread(size, nvfp4_self_test.MAX_REFERENCE_ROWS)
    finally:
        torch.set_default_dtype(torch.float32)
    assert rows.dtype == torch.int64 and len(rows.unique()) == min(size, nvfp4_self_test.MAX_REFERENCE_ROWS)
    assert (int(rows[0]), int(rows[-1])) == (0, size - 1)
