# SPDX-License-Identifier: Apache-2.0
"""MegaMoE's start-up profiles: capacities, inputs, cache records, choice of workspace, decode bound."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from moe_ep_twin import Backend, Bf16Config, Bootstrap, Fleet, Tensors

from sglang.srt.layers.moe import flashinfer_megamoe_autotune as tuning

KNOBS = {"version": 1, "entries": [{"knobs": {"tile": 64}}]}
VARIABLE = "FLASHINFER_MOE_EP_KNOB_CACHE"


class Tuner:
    """FlashInfer's tuner as far as it keeps named records."""

    def __init__(self) -> None:
        self.records: dict[str, Any] = {}
        self.published = 0

    def get_namespaced_records(self, _: str) -> dict[str, Any]:
        return dict(self.records)

    def publish_namespaced_records(self, _: str, records: dict[str, Any]) -> None:
        self.records, self.published = dict(records), self.published + 1


@pytest.fixture
def tuner(moe_ep: Any, monkeypatch: pytest.MonkeyPatch) -> Tuner:
    """Also makes the stand-in layer tune: it writes its winner where FlashInfer's would."""
    made = Tuner()
    module = ModuleType("flashinfer.autotuner")
    module.AutoTuner = SimpleNamespace(get=lambda: made)
    monkeypatch.setitem(sys.modules, "flashinfer.autotuner", module)
    monkeypatch.setattr(tuning, "_session_winners", {})
    moe_ep.tuned, moe_ep.writes = [], True

    class Temporary:
        def __init__(self, *, fleet_params: Fleet, backend: Backend, **_: Any) -> None:
            assert backend.megakernel.knobs == "auto"
            self.capacity = fleet_params.max_tokens_per_rank

        def warmup(self, tensors: Tensors) -> None:
            assert tensors.num_tokens == self.capacity
            moe_ep.tuned.append(self.capacity)
            if moe_ep.writes:
                Path(os.environ[VARIABLE]).write_text(json.dumps(KNOBS))

        def destroy(self) -> None:
            moe_ep.tuned.append("destroyed")

    moe_ep.MoEEpMegaLayer = Temporary
    return made


class Mega:
    """A layer with its own workspaces."""

    supports_output_view = True

    def __init__(self) -> None:
        self.used: list[int] = []
        self.staged: dict[int, Any] = {}

    def create_workspace(self, capacity: int) -> int:
        self.staged[capacity] = json.loads(Path(os.environ[VARIABLE]).read_text())
        return capacity

    def warmup(self, tensors: Tensors, workspace: int) -> None:
        assert tensors.num_tokens == workspace

    def forward(self, tensors: Tensors, workspace: Any = None, return_workspace_view: bool = False) -> Any:
        self.used.append(workspace)
        return workspace


def forward(**changes: Any) -> tuning.MegaMoeTunedForward:
    config = Bf16Config(intermediate_size=128, top_k=2, **changes)
    return tuning.MegaMoeTunedForward(Bootstrap(), Fleet(8, 64, 16), Backend(config, False, ()))


def inputs(count: int, scales: bool = False) -> Tensors:
    ids = torch.arange(count * 2, dtype=torch.int32).reshape(count, 2) % 8
    return Tensors(
        torch.randn(count, 16), ids, torch.rand(count, 2), torch.rand(count, 3) if scales else None
    )


def winners(moe_ep: Any) -> list[int]:
    return [entry for entry in moe_ep.tuned if entry != "destroyed"]


@pytest.mark.parametrize(
    ("limit", "capacities"),
    [(0, [1]), (1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8]), (56, [1, 2, 4, 8, 16, 32, 56])],
)
def test_capacities_are_powers_of_two_and_the_limit(limit: int, capacities: list[int]) -> None:
    assert tuning._capacities(limit) == capacities


@pytest.mark.parametrize("capacity", [1, 3, 5, 11])
def test_profile_inputs_repeat_or_cut_the_real_ones(capacity: int) -> None:
    given = inputs(5, scales=True)
    made = tuning._profile_inputs(given, capacity, 8)
    for name in ("hidden_states", "topk_ids", "topk_weights", "scales"):
        source, out = getattr(given, name), getattr(made, name)
        assert torch.equal(out, source[torch.arange(capacity) % 5]), name


def test_an_idle_rank_profiles_with_inputs_of_its_own() -> None:
    idle = Tensors(torch.empty(0, 16), torch.empty(0, 3, dtype=torch.int32), torch.empty(0, 3))
    made = tuning._profile_inputs(idle, 7, 8)
    assert made.hidden_states.shape == (7, 16) and not made.hidden_states.any()
    assert made.topk_ids.dtype == torch.int32 and set(made.topk_ids.flatten().tolist()) == set(range(8))
    assert all(len(set(row)) == 3 for row in made.topk_ids.tolist()), "distinct experts"
    torch.testing.assert_close(made.topk_weights.sum(-1), torch.ones(7))


@pytest.mark.parametrize(
    ("payload", "valid"),
    [
        (KNOBS, True),
        ({**KNOBS, "version": 2}, False),
        ({"version": 1, "entries": []}, False),
        ({"version": 1, "entries": [{"knobs": {}}]}, False),
        ({"version": 1, "entries": KNOBS["entries"] * 2}, False),
        ({"version": 1, "entries": ["x"]}, False),
        ([], False),
        (None, False),
    ],
)
def test_a_record_is_one_tactic_of_the_known_version(payload: Any, valid: bool) -> None:
    assert tuning._valid_native_cache(payload) is valid


def test_the_cache_variable_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "mine")
    with tuning._native_cache(tmp_path / "x"):
        assert os.environ[VARIABLE] == str(tmp_path / "x")
    assert os.environ[VARIABLE] == "mine"
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(KeyError), tuning._native_cache(tmp_path / "x"):
        raise KeyError
    assert VARIABLE not in os.environ


def test_activations_have_their_own_records_and_scales_have_not() -> None:
    plain = forward()._geometry_key
    assert forward(fc1_alpha=torch.rand(8))._geometry_key == plain
    others = (
        forward(gate_up_clamp=7.0),
        forward(activation="situ", situ_beta=1.0, situ_linear_beta=2.0),
        forward(activation="situ", situ_beta=1.0, situ_linear_beta=3.0),
        forward(enable_in_kernel_fc2_reduce=True),
    )
    assert len({plain, *(other._geometry_key for other in others)}) == 5


def test_one_profile_for_each_decode_capacity_and_one_for_prefill(tuner: Tuner, moe_ep: Any) -> None:
    first, second, mega = forward(), forward(), Mega()
    with tuning.megamoe_autotune_context(decode_num_tokens=6, prefill_num_tokens=40):
        first(mega, inputs(40))
        assert winners(moe_ep) == [1, 2, 4, 6, 40]
        assert moe_ep.tuned.count("destroyed") == 5, "the tuning layers give their memory back"
        second(Mega(), inputs(40))
    assert len(winners(moe_ep)) == 5, "layers of one geometry are tuned once"
    assert mega.staged == dict.fromkeys((1, 2, 4, 6, 40), KNOBS)
    assert tuner.published == 1 and len(tuner.records) == 5


@pytest.mark.parametrize(
    ("count", "workspace"), [(0, 1), (1, 1), (2, 2), (3, 4), (5, 6), (6, 6), (7, 40), (40, 40)]
)
def test_a_step_uses_the_smallest_profile_that_holds_it(tuner: Tuner, count: int, workspace: int) -> None:
    run, mega = forward(), Mega()
    with tuning.megamoe_autotune_context(6, 40):
        run(mega, inputs(40))
    assert run(mega, inputs(count)) == workspace
    with pytest.raises(ValueError, match=r"41 tokens per rank, exceeding .* 40"):
        run(mega, inputs(41))


def test_a_record_of_an_earlier_start_saves_the_tuning(tuner: Tuner, moe_ep: Any) -> None:
    with tuning.megamoe_autotune_context(2, 8):
        forward()(Mega(), inputs(8))
    tuning._session_winners.clear()  # a fresh process has the file alone
    moe_ep.tuned.clear()
    mega = Mega()
    with tuning.megamoe_autotune_context(2, 8):
        forward()(mega, inputs(8))
    assert moe_ep.tuned == [] and mega.staged[2] == KNOBS
    assert tuner.published == 1, "nothing new to publish"
    with tuning.megamoe_autotune_context(2, 8):
        forward(gate_up_clamp=7.0)(Mega(), inputs(8))
    assert winners(moe_ep) == [1, 2, 8], "another activation is not served by those records"


def test_a_damaged_record_is_tuned_again(tuner: Tuner, moe_ep: Any) -> None:
    key = f"{forward()._geometry_key}:1"
    tuner.records = {key: {"version": 0}}
    with tuning.megamoe_autotune_context(1, 1):
        forward()(Mega(), inputs(1))
    assert winners(moe_ep) == [1] and tuner.records[key] == KNOBS


def test_tuning_that_leaves_no_winner_stops_the_start(tuner: Tuner, moe_ep: Any) -> None:
    moe_ep.writes = False
    with pytest.raises(RuntimeError, match="did not record"), tuning.megamoe_autotune_context(1, 1):
        forward()(Mega(), inputs(1))
    assert moe_ep.tuned == [1, "destroyed"] and tuner.published == 0


def test_tuning_comes_before_serving_and_before_capture(
    tuner: Tuner, monkeypatch: pytest.MonkeyPatch
) -> None:
    served, mega = forward(), Mega()
    served(mega, inputs(3))
    assert mega.used == [None], "without tuning the layer's own workspace serves"
    with tuning.megamoe_autotune_context(2, 4):
        with pytest.raises(RuntimeError, match="precede its first ordinary forward"):
            served(mega, inputs(3))
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        with pytest.raises(RuntimeError, match="before CUDA graph capture"):
            forward()(mega, inputs(3))


def test_it_wants_prepared_weights_and_no_fixed_tactic() -> None:
    config = Bf16Config(intermediate_size=128, top_k=2)
    for backend in (Backend(config, True, ()), Backend(config, False, None)):
        with pytest.raises(ValueError, match="prepared weights"):
            tuning.MegaMoeTunedForward(Bootstrap(), Fleet(8, 64, 16), backend)
    config.knobs = {"tile": 64}
    with pytest.raises(ValueError, match="knobs=None"):
        tuning.MegaMoeTunedForward(Bootstrap(), Fleet(8, 64, 16), Backend(config, False, ()))


def test_several_ranks_choose_by_the_largest_count(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.layers import dp_attention

    run = tuning.MegaMoeTunedForward(
        Bootstrap(world_size=4), Fleet(8, 64, 16), Backend(Bf16Config(128, 2), False, ())
    )
    monkeypatch.setattr(dp_attention, "get_dp_global_num_tokens", lambda: [1, 5, 0, 3])
    assert run._common_tokens(inputs(1)) == 5
    monkeypatch.setattr(dp_attention, "get_dp_global_num_tokens", lambda: None)
    with pytest.raises(RuntimeError, match="synchronized DP token counts"):
        run._common_tokens(inputs(1))


@pytest.mark.parametrize(
    ("adaptive", "drafts", "rows"),
    [(None, None, 8), (None, 4, 8 * 4), ([1, 3, 6], 4, 6 * 7), ([1], 4, 8 * 4)],
    ids=["plain", "fixed", "wider adaptive step", "narrower adaptive step"],
)
def test_the_decode_bound_covers_every_verify_width(
    monkeypatch: pytest.MonkeyPatch, adaptive: list[int] | None, drafts: int | None, rows: int
) -> None:
    """Graphs hold 8 requests up to four tokens each and 6 of more: the widest step is not the fixed one's."""
    from sglang.srt.model_executor import model_runner

    spec = SimpleNamespace(speculative_adaptive=adaptive is not None, speculative_adaptive_config="x")
    monkeypatch.setattr(model_runner, "get_spec", lambda: spec)
    monkeypatch.setattr(model_runner, "max_speculative_num_draft_tokens", lambda: drafts)
    monkeypatch.setattr(model_runner, "resolve_candidate_steps_from_config", lambda _: adaptive)
    monkeypatch.setattr(
        model_runner,
        "get_batch_sizes_to_capture",
        lambda runner, width, **_: (([1, 2, 4, 8] if width <= 4 else [1, 2, 4, 6]), None),
    )
    runner = SimpleNamespace(
        decode_num_tokens_per_req=lambda num_draft_tokens=None: num_draft_tokens or 1,
        decode_graph_gather_requirements=lambda: (False, False),
    )
    assert model_runner.ModelRunner.max_decode_logits_rows(runner) == rows
