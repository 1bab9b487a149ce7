# SPDX-License-Identifier: Apache-2.0
"""The post-quantized head: its logits, the draft that shares it, the copy that lost its scale."""

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import sglang.srt.layers as layers
from sglang.srt.layers.quantization import fp8_post_quant as fp8


def head(rows=64, columns=32):
    torch.manual_seed(1)
    layer = SimpleNamespace(
        weight=torch.nn.Parameter(torch.randn(rows, columns).bfloat16(), requires_grad=False),
        quant_method=None,
    )
    exact = layer.weight.float().clone()
    fp8.Fp8Quantizer().quantize(layer)
    return layer, exact


def test_logits_are_the_products_within_fp8():
    layer, exact = head()
    x = torch.randn(4, 32).bfloat16()
    bias = torch.randn(64).bfloat16()
    got = fp8.lm_head_logits(layer, x, bias).float()
    want = x.float() @ exact.T + bias.float()
    assert got.shape == (4, 64) and (got - want).norm() / want.norm() < 0.05


def test_a_draft_that_takes_the_weight_takes_its_scale():
    layer, _ = head()
    draft = SimpleNamespace(weight=layer.weight, quant_method=None)
    assert fp8.holds_fp8(layer) and fp8.holds_fp8(draft)
    x = torch.randn(2, 32).bfloat16()
    assert torch.equal(fp8.lm_head_logits(draft, x), fp8.lm_head_logits(layer, x))


def test_a_bare_copy_is_refused_and_a_bf16_head_is_left_alone():
    layer, _ = head()
    method = type("UnquantizedEmbeddingMethod", (), {})()
    copied = torch.nn.Parameter(layer.weight.data.clone(), requires_grad=False)
    with pytest.raises(ValueError, match="channel scales"):
        fp8.holds_fp8(SimpleNamespace(weight=copied, quant_method=method))
    assert not fp8.holds_fp8(SimpleNamespace(weight=torch.zeros(2, 2), quant_method=method))
    with pytest.raises(RuntimeError, match="no embedding table"):
        layer.quant_method.embedding(layer, torch.tensor([0]))


def test_the_logits_processor_asks_before_it_multiplies_in_bf16():
    tree = ast.parse((Path(layers.__path__[0]) / "logits_processor.py").read_text())
    found = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "_compute_lm_head"]
    source = ast.unparse(found[0])
    assert "fp8_post_quant.lm_head_logits" in source
    assert source.index("fp8_post_quant.holds_fp8") < source.rindex("torch.matmul")
