# SPDX-License-Identifier: Apache-2.0
"""Ranks agree on the plan before anything is built; derived memory is said with the KV tokens it costs."""

from types import SimpleNamespace

import pytest
import torch

from sglang.srt.kernel_plugins.nvidia import binding
from sglang.srt.mega import derived
from sglang.srt.mega import plan as plans
from sglang.srt.mega import slots as s
from sglang.srt.mega.models.qwen3_5 import binder, spec

TABLE = s.table(
    [
        s.Slot(n, 1, 8, s.Numerics(s.BITWISE, test="t"), stock="part", entries=("entry",))
        for n in ("front", "moe")
    ]
)


def plan(refused=None):
    why = plans.Unavailable(plans.Cause.WEIGHTS, "w2 is float8", "stock runs it")
    return plans.make_plan(
        TABLE, s.select(TABLE, None), (1, 2), lambda slot: why if slot.name == refused else None
    )


def ranks(monkeypatch, other):
    """This rank's value beside another rank's."""
    monkeypatch.setattr(binding, "_gather_tp", lambda value, group=None: [value, other])


def test_ranks_with_one_plan_go_on(monkeypatch):
    ranks(monkeypatch, plan().summary())
    plans.agree(plan(), "a step")


def test_a_rank_whose_slot_fell_back_is_named_with_the_reason(monkeypatch):
    ranks(monkeypatch, plan(refused="moe").summary())
    seen = r"slots of a step differ.*rank 1: .*moe: kernel at \[\].*w2 is float8"
    with pytest.raises(RuntimeError, match=seen):
        plans.agree(plan(), "a step")


def test_nothing_is_bound_before_the_ranks_agree(monkeypatch):
    model = SimpleNamespace(model=SimpleNamespace(layers=[], config=None))
    monkeypatch.setattr(binder.Binder, "unavailable", lambda self, slot: None)
    monkeypatch.setattr(binder, "shape_of", lambda backbone: None)
    monkeypatch.setattr(binder.Binder, "bind", lambda self, slots: pytest.fail("bound before they agreed"))
    ranks(monkeypatch, ("another plan",))
    with pytest.raises(RuntimeError, match="differ"):
        spec.SPEC.build(model, None, SimpleNamespace(widths=(1, 2)))


def test_derived_memory_is_said_in_kv_tokens():
    per_token = derived.kv_bytes_per_token(kv_heads=2, head_dim=256, layers=10)
    assert per_token == 20480
    line = derived.describe({"workspace": 3 << 20, "dt_bias": 512, "none": 0}, per_token)
    assert line == (
        "memory beside the weights: workspace 3.0 MiB, dt_bias 0.5 KiB; in all 3.0 MiB, "
        "the KV cache of 154 tokens"
    )
    assert derived.describe({}, per_token).endswith("nothing; in all 0.0 KiB, the KV cache of 0 tokens")


def test_a_weight_that_is_fp32_already_is_no_copy():
    chain = binder.Chain(kernels=None, space=None)
    held = torch.ones(4)
    assert chain.in_fp32("a", held).data_ptr() == held.data_ptr() and chain.copies == {}
    copy = chain.in_fp32("a", held.bfloat16())
    assert copy.dtype == torch.float32 and chain.copies == {"a": 16}
