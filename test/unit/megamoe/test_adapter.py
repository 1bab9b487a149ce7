# SPDX-License-Identifier: Apache-2.0
"""The NVFP4 MegaMoE adapter of SGLang 0.5.23: scale storage, activation constants, reload, refusals.

FlashInfer's layer and its weight transforms are a stand-in (``conftest.py``); the adapter is SGLang's own.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from moe_ep_twin import PAD_ROWS

from sglang.srt.environ import envs
from sglang.srt.layers.moe import flashinfer_megamoe as adapter

PLANES = ("w13_weight", "w13_weight_scale", "w2_weight", "w2_weight_scale")
W4A16 = envs.SGLANG_FLASHINFER_CUTEDSL_NVFP4_W4A16


@pytest.fixture(params=[True, False], ids=["w4a16", "w4a4"])
def w4a16(request: pytest.FixtureRequest, moe_ep: Any):
    with W4A16.override(request.param):
        yield request.param


def pointers(layer: Any) -> dict[str, int]:
    return {name: getattr(layer, name).data_ptr() for name in PLANES}


def copies(layer: Any) -> dict[str, torch.Tensor]:
    return {name: getattr(layer, name).detach().clone() for name in PLANES}


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def test_scales_may_be_stored_larger_than_they_are_loaded(w4a16: bool, layer: Any) -> None:
    before = copies(layer)
    adapter.prepare_nvfp4_moe_weights_for_flashinfer_megamoe(layer)
    for name in PLANES:
        held, loaded = getattr(layer, name), before[name]
        if name.endswith("_scale"):
            assert held.shape[-2] == loaded.shape[-2] + PAD_ROWS
            assert same(held[..., : loaded.shape[-2], :].contiguous(), loaded)
        else:
            assert same(held, loaded ^ 0x11)
        load_view, prepared = layer._flashinfer_megamoe_weight_views[name]
        assert (load_view.shape, load_view.stride(), load_view.dtype) == (
            loaded.shape, loaded.stride(), loaded.dtype,
        )  # fmt: skip
        assert load_view.data_ptr() == prepared.data_ptr() == held.data_ptr(), "no second copy"


def test_a_reload_goes_through_the_same_buffers(w4a16: bool, layer: Any, moe_ep: Any) -> None:
    prepare = adapter.prepare_nvfp4_moe_weights_for_flashinfer_megamoe
    prepare(layer)
    mega = adapter.ensure_nvfp4_moe_layer_for_flashinfer_megamoe(layer)
    (w13, w13_scale), (w2, w2_scale) = mega.given["backend"].transformed_weights
    kernels = {p: t.data_ptr() for p, t in zip(PLANES, (w13, w13_scale, w2, w2_scale), strict=True)}
    first, shapes = pointers(layer), {name: getattr(layer, name).shape for name in PLANES}
    assert kernels == first, "the kernel reads the layer's own buffers"

    fresh = {}

    def load() -> None:
        for name in PLANES:
            plane = getattr(layer, name).data
            canonical = layer._flashinfer_megamoe_weight_views[name][0]
            assert plane.shape == canonical.shape and plane.is_contiguous()
            fresh[name] = torch.randint(1, 100, plane.shape, dtype=torch.uint8)
            plane.view(torch.uint8).copy_(fresh[name])

    adapter.make_nvfp4_megamoe_weight_loader(layer, load)()
    prepare(layer)
    assert pointers(layer) == first and {n: getattr(layer, n).shape for n in PLANES} == shapes
    assert adapter.ensure_nvfp4_moe_layer_for_flashinfer_megamoe(layer) is mega, "graphs hold this layer"
    for name, given in zip(PLANES, moe_ep.packs[1], strict=True):
        assert same(given, fresh[name]), f"{name}: what was loaded is what is transformed"
    assert same(layer.w13_weight, fresh["w13_weight"] ^ 0x11)
    scale = fresh["w2_weight_scale"]
    assert same(layer.w2_weight_scale[:, : scale.shape[1]].contiguous(), scale)


def test_w4a4_refuses_a_reload_with_another_input_scale(layer: Any, moe_ep: Any) -> None:
    with W4A16.override(False):
        adapter.prepare_nvfp4_moe_weights_for_flashinfer_megamoe(layer)
        adapter.ensure_nvfp4_moe_layer_for_flashinfer_megamoe(layer)
        layer.w13_input_scale_quant = torch.tensor(4.0)
        with pytest.raises(ValueError, match="unchanged input activation scale"):
            adapter.prepare_nvfp4_moe_weights_for_flashinfer_megamoe(layer)


def test_w4a16_has_no_input_scale_and_allows_any(layer: Any, moe_ep: Any) -> None:
    with W4A16.override(True):
        adapter.prepare_nvfp4_moe_weights_for_flashinfer_megamoe(layer)
        config = adapter.ensure_nvfp4_moe_layer_for_flashinfer_megamoe(layer).given["backend"].megakernel
        assert type(config) is moe_ep.Sm100_Bf16_Nvfp4_Bf16_Cutedsl_MegaMoeConfig
        assert not hasattr(config, "input_norm_const")
        layer.w13_input_scale_quant = torch.tensor(4.0)
        for name, (view, _) in layer._flashinfer_megamoe_weight_views.items():
            getattr(layer, name).data = view
        adapter.prepare_nvfp4_moe_weights_for_flashinfer_megamoe(layer)


@pytest.mark.parametrize("limit", [None, 7.0])
def test_swiglu_clamps_at_the_models_limit(w4a16: bool, layer: Any, limit: float | None) -> None:
    layer.moe_runner_config.swiglu_limit = limit
    adapter.prepare_nvfp4_moe_weights_for_flashinfer_megamoe(layer)
    config = adapter.ensure_nvfp4_moe_layer_for_flashinfer_megamoe(layer).given["backend"].megakernel
    assert (config.activation, config.gate_up_clamp) == ("swiglu", limit)


def test_situs_constants_are_not_clamps(w4a16: bool, layer: Any) -> None:
    config = layer.moe_runner_config
    config.activation, config.gemm1_alpha, config.gemm1_clamp_limit = "situ", 1.25, 5.0
    config.swiglu_limit = 9.0
    adapter.prepare_nvfp4_moe_weights_for_flashinfer_megamoe(layer)
    made = adapter.ensure_nvfp4_moe_layer_for_flashinfer_megamoe(layer).given["backend"].megakernel
    assert (made.activation, made.situ_beta, made.situ_linear_beta) == ("situ", 1.25, 5.0)
    assert made.gate_up_clamp is None


@pytest.mark.parametrize(("gated", "activation"), [(False, "silu"), (True, "gelu"), (True, "relu2")])
def test_other_activations_are_refused(w4a16: bool, layer: Any, gated: bool, activation: str) -> None:
    layer.moe_runner_config.is_gated, layer.moe_runner_config.activation = gated, activation
    with pytest.raises(ValueError, match="gated SiLU or SiTU"):
        adapter.prepare_nvfp4_moe_weights_for_flashinfer_megamoe(layer)


@pytest.mark.parametrize("reduce", [True, False])
def test_the_fc2_reduction_is_the_switchs(w4a16: bool, layer: Any, reduce: bool) -> None:
    with envs.SGLANG_FLASHINFER_MEGAMOE_IN_KERNEL_FC2_REDUCE.override(reduce):
        adapter.prepare_nvfp4_moe_weights_for_flashinfer_megamoe(layer)
        config = adapter.ensure_nvfp4_moe_layer_for_flashinfer_megamoe(layer).given["backend"].megakernel
    assert config.enable_in_kernel_fc2_reduce is reduce


REFUSALS = {
    "hidden size, W4A16": (True, {"hidden_size": 144}, "hidden_size to be a multiple of 32"),
    "hidden size, W4A4": (False, {"hidden_size": 160}, "hidden_size to be a multiple of 128"),
    "width, W4A16": (True, {"intermediate_size_per_partition": 96}, "multiple of 64"),
    "width, W4A4": (False, {"intermediate_size_per_partition": 192}, "multiple of 128"),
    "experts by ranks": (True, {"moe_ep_size": 3}, "divisible by ep_size"),
    "gate and up differ": (True, {"g1_alphas_up": torch.full((4,), 9.0)}, "matching gate/up FC1 alpha"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_shapes_and_scales_that_the_kernel_does_not_take(case: str, layer: Any, moe_ep: Any) -> None:
    w4a16, changes, message = REFUSALS[case]
    for name, value in changes.items():
        setattr(layer, name, value)
    with W4A16.override(w4a16), pytest.raises(ValueError, match=message):
        adapter.prepare_nvfp4_moe_weights_for_flashinfer_megamoe(layer)
    assert moe_ep.packs == [], "refused before any weight is transformed"


def test_what_each_precision_allows(layer: Any, moe_ep: Any) -> None:
    layer.hidden_size, layer.intermediate_size_per_partition = 160, 192
    layer.quant_config.use_per_token_activation = True
    with W4A16.override(True):
        adapter.prepare_nvfp4_moe_weights_for_flashinfer_megamoe(layer)
    layer.hidden_size, layer.intermediate_size_per_partition = 128, 128
    with W4A16.override(False), pytest.raises(ValueError, match="per-token activation"):
        adapter.prepare_nvfp4_moe_weights_for_flashinfer_megamoe(layer)


def test_router_weights_on_input_are_refused(w4a16: bool, layer: Any) -> None:
    layer.moe_runner_config.apply_router_weight_on_input = True
    with pytest.raises(ValueError, match="routing weights on input"):
        adapter.prepare_nvfp4_moe_weights_for_flashinfer_megamoe(layer)


@pytest.mark.parametrize(
    ("dtype", "reduce", "message"),
    [("mxfp8", True, "incompatible"), ("nvfp4", True, "incompatible"), ("fp16", False, "must be one of")],
)
def test_combine_dtypes(dtype: str, reduce: bool, message: str) -> None:
    combine = envs.SGLANG_FLASHINFER_MEGAMOE_COMBINE_DTYPE
    in_kernel = envs.SGLANG_FLASHINFER_MEGAMOE_IN_KERNEL_FC2_REDUCE
    refused = pytest.raises(ValueError, match=message)
    with combine.override(dtype), in_kernel.override(reduce), refused:
        adapter.resolve_flashinfer_megamoe_combine_dtype()
    with combine.override(" BF16 "), in_kernel.override(True):
        assert adapter.resolve_flashinfer_megamoe_combine_dtype() == "bf16"


def test_w4a16_combines_in_bf16_alone() -> None:
    from sglang.srt.arg_groups import moe_hook

    combine = envs.SGLANG_FLASHINFER_MEGAMOE_COMBINE_DTYPE
    refused = pytest.raises(ValueError, match="W4A16 requires")
    with W4A16.override(True), combine.override("mxfp8"), refused:
        moe_hook.validate_flashinfer_megamoe_envs()
    with W4A16.override(True), combine.override("bf16"):
        moe_hook.validate_flashinfer_megamoe_envs()


def test_every_call_carries_its_layers_scales(layer: Any, moe_ep: Any, seed: int) -> None:
    """The workspace is shared between layers, so scales cannot be kept in it."""
    mega = moe_ep.MoEEpMegaLayer()
    alphas = [torch.rand(4), torch.rand(4)]
    topk = SimpleNamespace(
        topk_weights=torch.rand(3, 2).bfloat16(),
        topk_ids=torch.tensor([[0, 1], [2, 3], [1, 2]], dtype=torch.int32),
    )
    x = torch.randn(3, 128).bfloat16()
    for alpha in alphas:
        info = adapter.FlashInferMegaMoeQuantInfo(
            mega=mega, fc1_alpha=alpha, fc2_alpha=alpha + 1, apply_routed_scaling_factor=True
        )
        dispatched = SimpleNamespace(hidden_states=x, topk_output=topk)
        out = adapter.run_flashinfer_megamoe(dispatched, info, layer.moe_runner_config).hidden_states
        torch.testing.assert_close(out, x * 2 * 2.5)
    for (tensors, _), alpha in zip(mega.said, alphas, strict=True):
        assert tensors.fc1_alpha is alpha and torch.equal(tensors.fc2_alpha, alpha + 1)
        assert tensors.topk_ids is topk.topk_ids, "int32 ids are widened by the kernel, not here"
        assert tensors.topk_weights.dtype == torch.float32


def test_an_expert_vector_is_one_number_or_one_for_each() -> None:
    assert adapter._local_expert_vector(torch.tensor(2.0), 3).tolist() == [2.0, 2.0, 2.0]
    with pytest.raises(ValueError, match=r"shape \(3,\)"):
        adapter._local_expert_vector(torch.ones(4), 3)


def test_dummy_weights_have_neutral_global_scales_and_random_values() -> None:
    from sglang.srt.model_loader.weight_utils import initialize_dummy_weights

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, plane in {
                "w13_weight_scale_2": torch.full((4, 2), torch.nan),
                "w2_weight_scale_2": torch.full((4,), torch.nan),
                "w13_weight_scale_inv": torch.full((4,), torch.nan),
                "weight": torch.full((64, 64), torch.nan),
                "w13_weight_scale": torch.zeros(64, 4).to(torch.float8_e4m3fn),
            }.items():
                self.register_parameter(name, torch.nn.Parameter(plane, requires_grad=False))

    first, second = Model(), Model()
    initialize_dummy_weights(first)
    initialize_dummy_weights(second)
    for name in ("w13_weight_scale_2", "w2_weight_scale_2", "w13_weight_scale_inv"):
        assert torch.equal(getattr(first, name), torch.ones_like(getattr(first, name))), name
    assert first.weight.abs().max() <= 1e-3 and first.weight.unique().numel() > 1000
    assert torch.equal(first.weight, second.weight), "ranks must agree"
