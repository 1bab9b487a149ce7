# SPDX-License-Identifier: Apache-2.0
"""Where Qwen3.5's megakernel is refused before the weights load; which weights send a slot to stock."""

from types import SimpleNamespace

import pytest
import torch

from sglang.kernels.plugin_kernels.nvidia.spec import find_spec
from sglang.srt.environ import envs
from sglang.srt.mega import host, in_tree
from sglang.srt.mega.models.qwen3_5 import spec
from sglang.srt.mega.models.qwen3_5.binder import Binder


def config(**changes):
    values = {
        "quantization": None,
        "enable_linear_replayssm": False,
        "enable_linear_replayssm_spec": False,
        "kv_cache_dtype": "auto",
        "enable_unified_memory": False,
        "enable_page_major_kv_layout": False,
        "cuda_graph_config": SimpleNamespace(decode=SimpleNamespace(backend="full")),
    }
    return SimpleNamespace(**values | changes)


def reasons(hf=None, **changes):
    return spec.SPEC.config_disable_reasons(config(**changes), hf or SimpleNamespace())


def test_both_architectures_are_served_on_hopper_and_in_the_emulator_alone():
    in_tree.register_all()
    for architecture in ("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"):
        for isa in ("sm_90", host.EMULATED):
            assert find_spec(architectures=[architecture], isa=isa) == (spec.SPEC, "")
        assert find_spec(architectures=[architecture], isa="sm_121")[0] is None


def test_a_plain_configuration_has_no_reason_against_it():
    assert reasons() == []
    assert reasons(kv_cache_dtype="bfloat16") == []


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"quantization": "fp8"}, "quantised"),
        ({"hf": SimpleNamespace(quantization_config={"quant_method": "modelopt"})}, "quantised"),
        ({"enable_linear_replayssm": True}, "ReplaySSM"),
        ({"kv_cache_dtype": "fp8_e4m3"}, "--kv-cache-dtype fp8_e4m3"),
        ({"enable_unified_memory": True}, "plain pools"),
        ({"enable_page_major_kv_layout": True}, "plain pools"),
    ],
)
def test_what_the_kernels_cannot_read_is_named(changes, why):
    (reason,) = reasons(**changes)
    assert why in reason


def test_layers_that_are_quantised_after_loading_are_named_and_a_bare_head_is_not():
    nvfp4, fp8 = envs.SGLANG_NVFP4_POST_QUANT, envs.SGLANG_FP8_POST_QUANT
    with nvfp4.override("gdn"), fp8.override("attention,lm_head"):
        (reason,) = reasons()
    assert reason.startswith("attention, gdn: post-quantised") and "SGLANG_NVFP4_POST_QUANT" in reason
    with fp8.override("lm_head"):
        assert reasons() == []
    with fp8.override("gnd"):
        assert "no group 'gnd'" in reasons()[0]


def test_a_bad_slot_list_and_parity_under_graphs_are_named():
    with envs.SGLANG_NVIDIA_MEGAKERNEL_SLOTS.override("gnd"):
        assert "near: gdn" in reasons()[0]
    with envs.SGLANG_MEGAKERNEL_PARITY.override(True):
        assert "--cuda-graph-backend-decode disabled" in reasons()[0]


def linear(*shape, dtype=torch.bfloat16):
    return SimpleNamespace(weight=torch.zeros(*shape, dtype=dtype))


def attention_layer(axis_map):
    return SimpleNamespace(
        layer_id=3,
        num_heads=2,
        num_kv_heads=1,
        rotary_emb=SimpleNamespace(rotary_dim=64, axis_map=axis_map),
        input_layernorm=linear(256),
        qkv_proj=linear(1536, 256),
        q_norm=linear(256),
        k_norm=linear(256),
        o_proj=linear(256, 512),
    )


def gdn_layer(out=torch.bfloat16):
    return SimpleNamespace(
        layer_id=0,
        input_layernorm=linear(256),
        linear_attn=SimpleNamespace(
            attn_tp_size=1,
            num_k_heads=2,
            num_v_heads=4,
            in_proj_qkvz=linear(1536, 256),
            in_proj_ba=linear(8, 256),
            attn=SimpleNamespace(conv_weights=torch.zeros(1024, 4, dtype=torch.bfloat16)),
            A_log=torch.zeros(4),
            out_proj=linear(256, 512, dtype=out),
        ),
    )


def binder(*layers, mrope=False, conv=torch.bfloat16, width=128):
    dtypes = SimpleNamespace(temporal=torch.float32, conv=conv)
    backbone = SimpleNamespace(
        layers=list(layers),
        config=SimpleNamespace(
            hidden_size=256,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=width,
            shared_expert_intermediate_size=width,
            rms_norm_eps=1e-6,
            mamba2_cache_params=SimpleNamespace(dtype=dtypes),
        ),
    )
    return Binder(backbone, mrope)


def test_weights_that_a_kernel_cannot_read_send_their_slot_to_stock():
    plain = binder(gdn_layer(), attention_layer(None))
    assert plain.unavailable("gdn") is None and plain.unavailable("attention") is None
    assert "out is torch.float32" in binder(gdn_layer(torch.float32), attention_layer(None)).unavailable(
        "gdn"
    )
    assert "state is not BF16" in binder(gdn_layer(), attention_layer(None), conv=torch.float32).unavailable(
        "gdn"
    )
    assert "three axes" in binder(gdn_layer(), attention_layer(None), mrope=True).unavailable("attention")
    mapped = binder(gdn_layer(), attention_layer(torch.zeros(32, dtype=torch.int64)), mrope=True)
    assert mapped.unavailable("attention") is None


def test_sizes_that_no_kernel_is_built_for_send_every_slot_to_stock():
    odd = binder(gdn_layer(), attention_layer(None), width=100)
    assert "expert width 100" in odd.unavailable("gdn") and odd.bind({"gdn"}) == {}
    assert "lacks GatedDeltaNet" in binder(attention_layer(None)).unavailable("moe")
