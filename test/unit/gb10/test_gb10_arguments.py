# SPDX-License-Identifier: Apache-2.0
"""Server arguments on a GB10: FP8 KV cache where the model allows, slow MLA named, unified memory checked."""

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest

import sglang.srt.arg_groups as arg_groups
from sglang.srt.arg_groups import gb10_hook as hook

GB10 = (12, 1)


def reason(**changes):
    facts = {
        "requested": "auto",
        "capability": GB10,
        "everywhere": False,
        "nvfp4": True,
        "mla": False,
        "sinks": False,
    }
    return hook.fp8_kv_reason(**facts | changes)


def test_an_nvfp4_model_on_a_gb10_gets_an_fp8_cache():
    assert reason()[0]
    assert reason(capability=(10, 0), everywhere=True)[0]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"requested": "bfloat16"}, "was asked for"),
        ({"capability": (12, 0)}, "not a GB10"),
        ({"capability": (9, 0), "everywhere": True}, "not a GB10"),
        ({"nvfp4": False}, "not NVFP4"),
        ({"mla": True}, "MLA"),
        ({"sinks": True}, "sinks"),
    ],
)
def test_every_other_model_keeps_its_cache_and_says_why(changes, why):
    chosen, said = reason(**changes)
    assert not chosen and why in said


def test_nvfp4_checkpoints_are_told_from_others():
    group = {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}
    assert hook.holds_nvfp4("modelopt_fp4", None)
    assert hook.holds_nvfp4("compressed-tensors", {"config_groups": {"group_0": group}})
    group_int = {"weights": {"num_bits": 4, "type": "int", "group_size": 16}}
    assert not hook.holds_nvfp4("compressed-tensors", {"config_groups": {"group_0": group_int}})
    assert not hook.holds_nvfp4("fp8", None) and not hook.holds_nvfp4(None, None)


def mla_server(monkeypatch, on_device, capability, mla=True, **backends):
    """``check_mla_backends`` of a model whose backends were asked for."""
    names = ("attention_backend", "prefill_attention_backend", "decode_attention_backend")
    on_device(capability, hook)
    cfg = SimpleNamespace(**dict.fromkeys(names) | backends)
    monkeypatch.setattr(hook, "resolving_view", lambda args: cfg)
    monkeypatch.setattr(hook, "use_mla_backend", lambda args: mla)
    hook.check_mla_backends(None)


@pytest.mark.parametrize(
    ("capability", "mla", "backend", "warned"),
    [
        (GB10, True, "flashinfer", True),
        (GB10, True, "triton", False),
        (GB10, True, None, False),
        (GB10, False, "flashinfer", False),
        ((12, 0), True, "flashinfer", False),
    ],
)
def test_flashinfer_mla_is_named_slow_on_a_gb10_alone(
    monkeypatch, on_device, caplog, capability, mla, backend, warned
):
    mla_server(monkeypatch, on_device, capability, mla, attention_backend=backend)
    assert bool([r for r in caplog.records if "triton" in r.getMessage()]) == warned


TRTLLM_MLA = {"attention_backend": "trtllm_mla"}


@pytest.mark.parametrize(
    ("capability", "backends", "refused"),
    [
        (GB10, TRTLLM_MLA, True),
        ((12, 0), TRTLLM_MLA, True),
        ((12, 0), {"prefill_attention_backend": "trtllm_mla"}, True),
        (GB10, TRTLLM_MLA | {"prefill_attention_backend": "triton"}, False),
        (GB10, {"decode_attention_backend": "trtllm_mla"}, False),
        ((10, 0), TRTLLM_MLA, False),
        ((10, 3), TRTLLM_MLA, False),
    ],
)
def test_an_mla_prefill_without_kernels_is_refused_and_its_decode_is_not(
    monkeypatch, on_device, capability, backends, refused
):
    if refused:
        with pytest.raises(ValueError, match="prefill-attention-backend triton"):
            mla_server(monkeypatch, on_device, capability, **backends)
    else:
        mla_server(monkeypatch, on_device, capability, **backends)


def test_a_model_without_mla_may_name_trtllm_mla(monkeypatch, on_device):
    """Upstream's own checks answer there."""
    mla_server(monkeypatch, on_device, GB10, mla=False, **TRTLLM_MLA)


def test_the_rules_stand_in_the_resolution_pipeline_in_order():
    tree = ast.parse((Path(arg_groups.__path__[0]) / "pipeline.py").read_text())
    (function,) = [
        n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "run_resolution_pipeline"
    ]
    calls = [ast.unparse(n.func) for n in ast.walk(function) if isinstance(n, ast.Call)]
    order = [c for c in calls if c.startswith("gb10_hook.")]
    assert order == [
        "gb10_hook.check_unified_memory",
        "gb10_hook.default_fp8_kv",
        "gb10_hook.check_mla_backends",
    ]
