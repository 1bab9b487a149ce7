# SPDX-License-Identifier: Apache-2.0
"""Post-quantization after loading: the plan, what changes, what it saves, what stays."""

import ast
import sys
from pathlib import Path

import pytest
import torch

import sglang.srt.model_loader as model_loader
from sglang.srt.environ import envs
from sglang.srt.layers.quantization import fp8_post_quant as fp8
from sglang.srt.layers.quantization import post_quant
from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod


class Linear(torch.nn.Module):
    """A loaded BF16 layer, as far as post-quantization looks."""

    def __init__(self, rows, columns):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(rows, columns).bfloat16() * 0.05, requires_grad=False)
        self.quant_method = UnquantizedLinearMethod()
        self.bias = None

    def forward(self, x):
        return self.quant_method.apply(self, x)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear_attn = torch.nn.Module()
        self.linear_attn.in_proj_qkvz = Linear(128, 256)
        self.linear_attn.in_proj_ba = Linear(16, 256)
        self.linear_attn.out_proj = Linear(256, 136)  # 136 columns: no multiple of 16
        self.lm_head = Linear(512, 256)


@pytest.mark.parametrize(
    ("nvfp4", "fp8_list", "why"),
    [
        ("gdnn", "", "no group 'gdnn'"),
        ("lm_head", "", "SGLANG_NVFP4_POST_QUANT: no group 'lm_head'"),
        ("gdn", "gdn", "stands in both"),
    ],
)
def test_a_list_that_cannot_be_read_is_refused(nvfp4, fp8_list, why):
    with pytest.raises(ValueError, match=why):
        post_quant.read_plan(nvfp4, fp8_list)


PINNED = Path(__file__).parents[1] / "models" / "pinned" / "qwen3_5_397b.txt"


@pytest.mark.parametrize(
    ("group", "layers"),
    [
        ("gdn", ["in_proj_qkvz", "out_proj"]),
        ("attention", ["qkv_proj", "o_proj"]),
        ("shared_expert", ["gate_up_proj", "down_proj"]),
        ("lm_head", ["lm_head"]),
    ],
)
def test_each_group_names_qwen3_5s_own_modules(group, layers):
    """On the CUDA branch an attention layer's projections lie in the layer itself."""
    text = PINNED.read_text().replace("layers.*", "layers.3")
    modules = {line.split(".weight ")[0] for line in text.splitlines() if ".weight " in line}
    found = [name for name in modules if post_quant.Plan({group: "fp8"}).target_of(name)]
    assert sorted(name.rsplit(".", 1)[-1] for name in found) == sorted(layers)


def test_nothing_changes_unless_asked():
    model = Model()
    before = model.lm_head.weight
    assert post_quant.apply(model) == [] and model.lm_head.weight is before
    assert not post_quant.keeps_separate_gdn_projections()


def test_fp8_halves_the_asked_layers_and_reports_cost_and_leftovers(caplog):
    model = Model()
    x = torch.randn(3, 256).bfloat16()
    exact = x.float() @ model.linear_attn.in_proj_qkvz.weight.float().T
    with envs.SGLANG_FP8_POST_QUANT.override("gdn,lm_head"), caplog.at_level("INFO"):
        gdn, head = post_quant.apply(model)
        assert post_quant.keeps_separate_gdn_projections()
    assert (gdn.layers, head.layers) == (1, 1)
    assert gdn.bytes_before == 128 * 256 * 2 and gdn.bytes_after == 128 * 256 + 128 * 4
    assert 0 < gdn.worst_error < 0.04
    assert gdn.skipped == {"256 x 136 is no multiple of 16": 1}
    assert "post-quantized gdn to fp8: 1 layers" in caplog.text and "left as they are" in caplog.text
    assert model.linear_attn.in_proj_ba.weight.dtype == torch.bfloat16, (
        "the gates are no projection of the group"
    )
    got = model.linear_attn.in_proj_qkvz(x).float()
    assert (got - exact).norm() / exact.norm() < 0.05


def test_a_tied_weight_stays():
    model = Model()
    model.embed_tokens = torch.nn.Module()
    model.embed_tokens.weight = model.lm_head.weight
    with envs.SGLANG_FP8_POST_QUANT.override("lm_head"):
        (head,) = post_quant.apply(model)
    assert head.layers == 0 and head.skipped == {"the weight is another module's too": 1}


class Draft(Model):
    """A draft as Qwen3.5's: the worker hands it the target's head; its own was never filled."""

    def __init__(self):
        super().__init__()
        self.lm_head.weight.data.fill_(float("nan"))

    def set_lm_head_from_target(self, head):
        self.lm_head = head


class Qwen3NextForCausalLMMTP(Model):
    pass


@pytest.mark.parametrize("draft_class", [Draft, Qwen3NextForCausalLMMTP])
def test_a_draft_leaves_its_own_head_and_takes_the_targets(draft_class, caplog):
    target, draft = Model(), draft_class()
    before = draft.lm_head.weight
    with envs.SGLANG_FP8_POST_QUANT.override("gdn,lm_head"), caplog.at_level("INFO"):
        post_quant.apply(target)
        gdn, head = post_quant.apply(draft)
    assert draft.lm_head.weight is before and head.layers == 0
    assert head.skipped == {"the draft takes its target's head": 1}
    assert gdn.layers == 1, "its other layers are its own"
    assert not [r for r in caplog.records if r.levelname == "WARNING"]
    draft.lm_head = target.lm_head
    x = torch.randn(2, 256).bfloat16()
    assert torch.equal(fp8.lm_head_logits(draft.lm_head, x), fp8.lm_head_logits(target.lm_head, x))


def test_a_draft_with_a_head_of_its_own_has_it_quantized():
    draft = Draft()
    draft._owns_lm_head = True
    draft.lm_head.weight.data.normal_()
    with envs.SGLANG_FP8_POST_QUANT.override("lm_head"):
        (head,) = post_quant.apply(draft)
    assert head.layers == 1 and fp8.holds_fp8(draft.lm_head)


def test_upstreams_drafts_that_borrow_a_head_are_known():
    """Every class that says how it takes the target's head, and the name that Nemotron-H's uses to keep its
    own.
    """
    from sglang.srt.models.nemotron_h_mtp import NemotronHForCausalLMMTP
    from sglang.srt.models.qwen3_5_mtp import Qwen3_5ForCausalLMMTP

    for draft in (Qwen3_5ForCausalLMMTP, NemotronHForCausalLMMTP):
        assert post_quant.takes_targets_head(draft.__new__(draft))
    source = Path(sys.modules[NemotronHForCausalLMMTP.__module__].__file__).read_text()
    assert "self._owns_lm_head = bool(" in source
    assert not post_quant.takes_targets_head(Model())


def test_channel_scales_hold_at_the_clamp_and_for_zero_and_tiny_rows():
    weight = torch.stack([torch.zeros(16), torch.full((16,), 1e-30), torch.linspace(-3e4, 3e4, 16)])
    codes, scales, error = fp8.quantize_channels(weight)
    assert scales[0] == 1.0 and torch.isfinite(scales).all()
    assert codes[2].float().abs().max() == fp8.E4M3_MAX
    assert torch.allclose(codes.float() * scales, weight, rtol=2**-4, atol=1e-33) and error < 0.05
    with pytest.raises(ValueError, match="infinity or a NaN"):
        fp8.quantize_channels(torch.tensor([[float("nan"), 1.0]]))


def test_nvfp4_through_marlin_matches_the_dequantised_weight(twin):
    model = Model()
    weight = model.linear_attn.in_proj_qkvz.weight.float()
    with envs.SGLANG_NVFP4_POST_QUANT.override("gdn"):
        (gdn,) = post_quant.apply(model)
    assert gdn.layers == 1 and gdn.bytes_after < 0.3 * gdn.bytes_before
    assert 0.03 < gdn.worst_error < 0.15
    x = torch.randn(5, 256).bfloat16()
    got, exact = model.linear_attn.in_proj_qkvz(x).float(), x.float() @ weight.T
    assert (got - exact).norm() / exact.norm() < 0.15


@pytest.mark.parametrize("variable", ["SGLANG_FP8_POST_QUANT", "SGLANG_NVFP4_POST_QUANT"])
def test_an_input_of_three_dimensions_keeps_them(twin, variable):
    model = Model()
    with getattr(envs, variable).override("gdn"):
        post_quant.apply(model)
    x = torch.randn(2, 3, 256).bfloat16()
    layer = model.linear_attn.in_proj_qkvz
    flat = layer(x.reshape(6, 256))
    assert layer(x).shape == (2, 3, 128) and torch.equal(layer(x).reshape(6, 128), flat)


def test_the_loader_applies_it_after_the_weights_are_processed():
    tree = ast.parse((Path(model_loader.__path__[0]) / "loader.py").read_text())
    functions = [
        n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "postprocess_weights"
    ]
    calls = [[ast.unparse(c.func) for c in ast.walk(f) if isinstance(c, ast.Call)] for f in functions]
    assert any("post_quant.apply" in names for names in calls)
