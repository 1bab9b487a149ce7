# SPDX-License-Identifier: Apache-2.0
"""Server arguments on a GB10: FP8 KV cache where the model allows, slow MLA named, unified memory checked."""

import ast
from pathlib import Path

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


def test_flashinfer_mla_is_named_slow_on_a_gb10_alone():
    assert "triton" in hook.mla_backend_warning("flashinfer", True, GB10)
    assert hook.mla_backend_warning("triton", True, GB10) is None
    assert hook.mla_backend_warning("flashinfer", False, GB10) is None
    assert hook.mla_backend_warning("flashinfer", True, (12, 0)) is None


def test_the_rules_stand_in_the_resolution_pipeline_in_order():
    tree = ast.parse((Path(arg_groups.__path__[0]) / "pipeline.py").read_text())
    (function,) = [
        n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "run_resolution_pipeline"
    ]
    calls = [ast.unparse(n.func) for n in ast.walk(function) if isinstance(n, ast.Call)]
    order = [c for c in calls if c.startswith("gb10_hook.")]
    assert order == ["gb10_hook.check_unified_memory", "gb10_hook.default_fp8_kv", "gb10_hook.warn_slow_mla"]
