# SPDX-License-Identifier: Apache-2.0
"""The frame that every family's spec is made of: reasons, features, and what a build does in which order."""

from types import SimpleNamespace

import pytest

from sglang.kernels.plugin_kernels.nvidia.spec import Feature, NumericsKind
from sglang.srt.environ import envs
from sglang.srt.kernel_plugins.nvidia import binding
from sglang.srt.mega import build
from sglang.srt.mega import slots as s
from sglang.srt.mega.executor import DECODE, VERIFY

NEAR = s.Numerics(s.TOLERANCE, test="t", rtol=0.5)


def slot(name, entries=("entry",), **changes):
    return s.Slot(name, 1, 8, s.Numerics(s.BITWISE, test="t"), stock="part", entries=entries, **changes)


def spec(*slots, bound=None, modes=(DECODE,), **changes):
    return build.family_spec(
        name="a family",
        slots=s.table(slots),
        max_rows=8,
        modes=modes,
        tp_sizes=frozenset({1}),
        bound=bound or (lambda model, hf_config: build.Bound(lambda slot, layer, view: {})),
        **changes,
    )


def config(backend="disabled"):
    return SimpleNamespace(cuda_graph_config=SimpleNamespace(decode=SimpleNamespace(backend=backend)))


def test_an_all_stock_plan_that_nobody_asked_for_is_a_reason_against_it():
    optional = spec(slot("a", default=False), slot("b", entries=()))
    (reason,) = optional.config_disable_reasons(config(), None)
    assert reason.endswith("slots with a kernel, by SLOTS: a")
    assert "none yet" in spec(slot("b", entries=())).config_disable_reasons(config(), None)[0]
    with envs.SGLANG_NVIDIA_MEGAKERNEL_SLOTS.override(""):
        assert optional.config_disable_reasons(config(), None) == []
    assert spec(slot("a")).config_disable_reasons(config(), None) == []


def test_a_familys_own_reasons_stand_beside_the_common_ones():
    own = spec(slot("a"), config_reasons=lambda cfg, hf_config: ["too small"])
    with envs.SGLANG_NVIDIA_MEGAKERNEL_SLOTS.override("b"):
        assert own.config_disable_reasons(config(), None) == [
            "unknown megakernel slot 'b'; slots: a",
            "too small",
        ]
    with envs.SGLANG_MEGAKERNEL_PARITY.override(True):
        assert "eager" in own.config_disable_reasons(config("full"), None)[0]


def test_features_and_numerics_follow_modes_and_slots():
    plain = spec(slot("a"))
    assert plain.features == frozenset() and plain.numerics.kind is NumericsKind.BITWISE
    both = spec(s.Slot("a", 1, 8, NEAR, stock="part"), slot("b"), modes=(DECODE, VERIFY))
    assert both.features == {Feature.SPECULATIVE_DECODING}
    assert both.numerics.kind is NumericsKind.TOLERANCE and both.numerics.tolerances == {"a": 0.5}


@pytest.mark.parametrize("others", ["agree", "differ"])
def test_kernels_are_bound_after_the_ranks_agreed_and_only_those_of_the_plan(monkeypatch, others):
    bound = []

    def bind(slots):
        bound.append(slots)
        return {("a", 1): print}

    family = spec(
        slot("a"),
        slot("b", entries=()),
        slot("c", default=False),
        bound=lambda model, hf_config: build.Bound(lambda slot, layer, view: {}, bind=bind),
    )
    monkeypatch.setattr(
        binding,
        "_gather_tp",
        lambda value, group=None: [value, value if others == "agree" else ("another plan",)],
    )
    context = SimpleNamespace(widths=(1, 2))
    if others == "differ":
        with pytest.raises(RuntimeError, match="slots of a family differ"):
            family.build(None, None, context)
        assert bound == []
    else:
        built = family.build(None, None, context)
        assert bound == [{"a"}] and built.kernels_by_width[2] == {("a", 1): print}
        assert "b: kernel at [], stock for ['this tree has no kernel for it" in " ".join(
            built.step_plan.summary()
        )
