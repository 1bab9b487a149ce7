# SPDX-License-Identifier: Apache-2.0
"""Contract version 2 in the patched SGLang: versions, in-tree specs, device questions, capture checks,
coverage.
"""

import logging
from types import SimpleNamespace

import pytest
import torch

from sglang.kernels.plugin_kernels.nvidia import spec as contract
from sglang.srt.environ import envs
from sglang.srt.kernel_plugins.nvidia import binding
from sglang.srt.mega import coverage, host
from sglang.srt.mega.executor import Executor
from sglang.srt.mega.plan import make_plan
from sglang.srt.mega.slots import BITWISE, Numerics, Slot, select, table
from sglang.srt.model_executor.forward_batch_info import ForwardMode

SPEC = contract.MegakernelSpec(
    name="toy",
    requires=contract.Requirements(isas=frozenset({"sm_90", host.EMULATED}), tp_sizes=frozenset({1})),
    features=frozenset(),
    numerics=contract.Numerics(contract.NumericsKind.BITWISE),
    max_rows=8,
    build=lambda model, hf_config, context: None,
    api_version=2,
    flag_sets_env={"SGLANG_ENABLE_EMBED_REPLICATION": True},
)
OLD = contract.msgspec.structs.replace(SPEC, name="old", api_version=1, flag_sets_env={})
FUTURE = contract.msgspec.structs.replace(SPEC, api_version=3)
HERE = __name__


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "toy_specs", SimpleNamespace(SPEC=SPEC, OLD=OLD, FUTURE=FUTURE))
    monkeypatch.setattr(contract, "_REGISTRY", {})
    monkeypatch.setattr(contract, "_IN_TREE", {})


def find(isa="sm_90"):
    return contract.find_spec(architectures=["Toy"], isa=isa)


def test_an_in_tree_spec_is_served_with_no_plugin_installed():
    assert binding.plugin_reasons() == []
    contract.register_in_tree(architecture="Toy", path="toy_specs:SPEC")
    assert find() == (SPEC, "")
    assert contract.registered_architectures() == ["Toy"] and contract.spec_registered(["Toy"])


def test_an_installed_plugin_wins():
    contract.register_in_tree(architecture="Toy", path="toy_specs:SPEC")
    contract.register(architecture="Toy", path="toy_specs:OLD")
    assert find() == (OLD, "")


def test_versions_1_and_2_are_served_and_3_is_refused():
    contract.register(architecture="Toy", path="toy_specs:FUTURE")
    spec, why = find()
    assert spec is None and "version 3" in why and "[1, 2]" in why


def test_hopper_is_served_where_a_spec_lists_it_and_no_other_card():
    contract.register_in_tree(architecture="Toy", path="toy_specs:SPEC")
    assert find("sm_90")[0] is SPEC
    spec, why = find("sm_100")
    assert spec is None and "not sm_100" in why


def test_the_emulator_is_an_isa_only_when_asked_for():
    assert not torch.cuda.is_available()
    assert host.device_isa() is None
    with envs.SGLANG_MEGAKERNEL_EMULATE.override(True):
        assert binding.device_isa() == host.EMULATED
    assert host.free_bytes() > 0 and not host.capturing()


class Config(SimpleNamespace):
    """Resolved settings of which every field that a probe reads and no test sets is None."""

    def __getattr__(self, name):
        return None


def config(**changes):
    cfg = Config(
        tp_size=1,
        pp_size=1,
        nnodes=1,
        watchdog_timeout=300,
        cuda_graph_config=SimpleNamespace(decode=SimpleNamespace(backend="disabled")),
    )
    for name, value in changes.items():
        setattr(cfg, name, value)
    return cfg


def reasons(cfg):
    hf_config = SimpleNamespace(architectures=["Toy"])
    return binding.megakernel_disable_reasons(cfg=cfg, hf_config=hf_config, isa="sm_90")[1]


def test_a_variable_that_the_flag_sets_is_refused_when_set_otherwise():
    contract.register_in_tree(architecture="Toy", path="toy_specs:SPEC")
    assert reasons(config()) == []
    with envs.SGLANG_ENABLE_EMBED_REPLICATION.override(True):
        assert reasons(config()) == []
    with envs.SGLANG_ENABLE_EMBED_REPLICATION.override(False):
        assert reasons(config()) == ["SGLANG_ENABLE_EMBED_REPLICATION False is not True"]


def test_upstreams_checks_are_kept():
    contract.register_in_tree(architecture="Toy", path="toy_specs:SPEC")
    why = reasons(config(tp_size=2, enable_lora=True, watchdog_timeout=6))
    assert any("LoRA is in use" in r for r in why)
    assert any("tp_size 2" in r for r in why)
    assert any("--watchdog-timeout" in r for r in why)


class Batch:
    def __init__(self, mode, batch_size):
        self.forward_mode, self.batch_size = mode, batch_size


def executor(requested=None, modes=frozenset({"decode"})):
    slots = table([Slot("part", 1, 4, Numerics(BITWISE, test="t"), stock="part")])
    plan = make_plan(slots, select(slots, requested), [1, 2, 3, 4], lambda slot: None)
    return Executor(name="toy", slots=slots, plan=plan, kernels={}, modes=modes)


def dispatch(built):
    calls = []

    def original(input_ids, positions, forward_batch):
        calls.append(int(input_ids.shape[0]))
        return "stock"

    counter = coverage.Coverage("toy")
    return binding._Dispatch(built=built, original=original, binding=None, coverage=counter), calls, counter


@pytest.mark.parametrize(
    ("mode", "rows", "covered"),
    [
        (ForwardMode.DECODE, 4, True),
        (ForwardMode.DECODE, 5, False),
        (ForwardMode.EXTEND, 4, False),
        (ForwardMode.TARGET_VERIFY, 4, False),
        (ForwardMode.IDLE, 1, False),
    ],
)
def test_a_step_is_covered_by_its_mode_and_rows_alone(mode, rows, covered):
    step = executor().plan(torch.zeros(rows), Batch(mode, rows))
    assert (step is not None) == covered
    if covered:
        assert (step.mode, step.rows) == ("decode", rows)


def test_uncovered_eager_steps_run_the_models_forward_and_are_counted():
    made, calls, counter = dispatch(executor())
    forward = made.wrapped()
    assert forward(torch.zeros(7), None, Batch(ForwardMode.DECODE, 7)) == "stock"
    assert forward(torch.zeros(9), None, Batch(ForwardMode.EXTEND, 1)) == "stock"
    assert calls == [7, 9]
    assert counter.share() == 0.0 and counter.total == 1, "prefill is no step"


def test_capture_check_refuses_a_target_whose_graphs_run_stock_and_checks_each_mode(monkeypatch, caplog):
    monkeypatch.setattr(host, "capturing", lambda: True)
    made, _, _ = dispatch(executor())
    made.binding = SimpleNamespace(assert_live=lambda: None)
    forward = made.wrapped()
    check = binding._CaptureCheck(spec=SPEC, dispatch=made)
    runner = SimpleNamespace(capture_bs=[5, 6])
    for bs in runner.capture_bs:
        batch = Batch(ForwardMode.DECODE, bs)
        forward(torch.zeros(bs), None, batch)
        if bs == 6:
            with pytest.raises(ValueError, match="none of the 2 captured decode graphs"):
                check(runner, None, batch, bs)
        else:
            check(runner, None, batch, bs)

    draft = binding._CaptureCheck(spec=SPEC, dispatch=made, is_draft=True)
    with caplog.at_level(logging.INFO, logger=binding.logger.name):
        for mode in (ForwardMode.DECODE, ForwardMode.DRAFT_EXTEND_V2):
            for bs in runner.capture_bs:
                batch = Batch(mode, bs)
                forward(torch.zeros(bs), None, batch)
                draft(runner, None, batch, bs)
    assert draft.done_modes == {"decode", "draft_extend_v2"}
    assert "runs the draft_extend_v2 graphs of batch sizes []" in caplog.text


def test_replays_are_counted_by_what_their_graph_captured():
    counter = coverage.Coverage("toy")
    model = torch.nn.Linear(1, 1)
    batch = Batch(ForwardMode.DECODE, 3)
    coverage.count_replay(model, batch, 4)
    captured = {("decode", 4): contract.Step(mode="decode", rows=4), ("decode", 8): None}
    model.__dict__["_megakernel_dispatch"] = SimpleNamespace(coverage=counter, captured=captured)
    coverage.count_replay(model, batch, 4)
    coverage.count_replay(model, batch, 4)
    coverage.count_replay(model, batch, 8)
    assert counter.steps == {("decode", True): 2, ("decode", False): 1}
    assert counter.share("decode") == pytest.approx(2 / 3)
    assert "decode 2 of 3" in str(counter)


def test_coverage_reaches_prometheus():
    from prometheus_client import REGISTRY

    counter = coverage.Coverage("prom-toy", prometheus=True)
    counter.count("decode", True)
    labels = {"model": "prom-toy", "mode": "decode", "path": "mega"}
    assert REGISTRY.get_sample_value("sglang:megakernel_steps_total", labels) == 1.0
