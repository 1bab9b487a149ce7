# SPDX-License-Identifier: Apache-2.0
"""KDA against a scalar reference written from its definition."""

from __future__ import annotations

import importlib
import math
import sys
import types
from pathlib import Path
from types import ModuleType

import pytest

torch = pytest.importorskip("torch", reason="the CPU operators are torch code: ./sglang.sh test runs them")

FOLDER = Path(__file__).parents[3] / "python/sglang/srt/hardware_backend/cpu"

HEADS, K_DIM, V_DIM, SLOTS = 3, 8, 6, 5


@pytest.fixture(scope="module")
def kda() -> ModuleType:
    package = types.ModuleType("cpu_backend")
    package.__path__ = [str(FOLDER)]  # type: ignore[attr-defined]
    sys.modules["cpu_backend"] = package
    return importlib.import_module("cpu_backend.kda")


@pytest.fixture
def case() -> dict[str, torch.Tensor]:
    seed = torch.seed() % 2**31
    print(f"seed {seed}")
    torch.manual_seed(seed)
    tokens = 7
    return {
        "q": torch.randn(1, tokens, HEADS, K_DIM),
        "k": torch.randn(1, tokens, HEADS, K_DIM),
        "v": torch.randn(1, tokens, HEADS, V_DIM),
        "gate": torch.randn(1, tokens, HEADS * K_DIM),
        "beta": torch.randn(1, tokens, HEADS),
        "A_log": torch.rand(1, 1, HEADS, 1),
        "dt_bias": torch.randn(HEADS * K_DIM),
        "states": torch.randn(SLOTS, HEADS, V_DIM, K_DIM),
    }


def reference(case: dict[str, torch.Tensor], spans: list[tuple[int, int, int]], lower_bound: float | None):
    """Each (start, end, slot): one head, one token, one channel at a time, in double precision."""
    out = torch.full((case["v"].shape[1], HEADS, V_DIM), math.nan, dtype=torch.double)
    states = case["states"].double().clone()
    gate = case["gate"][0].view(-1, HEADS, K_DIM).double()
    bias = case["dt_bias"].view(HEADS, K_DIM).double()
    for start, end, slot in spans:
        for t in range(start, end):
            for h in range(HEADS):
                q, k = (case[name][0, t, h].double() for name in "qk")
                q, k = (x / math.sqrt(float(x @ x) + 1e-6) for x in (q, k))
                rate = math.exp(float(case["A_log"].flatten()[h]))
                for c in range(K_DIM):
                    x = float(gate[t, h, c] + bias[h, c])
                    log = -rate * math.log1p(math.exp(x))
                    if lower_bound is not None:
                        log = lower_bound / (1 + math.exp(-rate * x))
                    states[slot, h, :, c] *= math.exp(log)
                beta = 1 / (1 + math.exp(-float(case["beta"][0, t, h])))
                error = (case["v"][0, t, h].double() - states[slot, h] @ k) * beta
                states[slot, h] += error[:, None] * k
                out[t, h] = states[slot, h] @ q / math.sqrt(K_DIM)
    return out, states


def run(function, case: dict[str, torch.Tensor], slots: list[int], bounds: list[int], **more) -> torch.Tensor:
    names = ("a", "b") if "update" in function.__name__ else ("g", "beta")
    pool = ("initial_state_source" if "update" in function.__name__ else "initial_state", case["states"])
    if names[0] == "g":
        more["beta_is_raw"] = True
    return function(
        q=case["q"],
        k=case["k"],
        v=case["v"],
        A_log=case["A_log"],
        dt_bias=case["dt_bias"],
        initial_state_indices=torch.tensor(slots),
        cu_seqlens=torch.tensor(bounds),
        **{names[0]: case["gate"], names[1]: case["beta"], pool[0]: pool[1]},
        **more,
    )


@pytest.mark.parametrize("lower_bound", [None, -5.0])
def test_prefill_of_packed_sequences(kda, case, lower_bound) -> None:
    want, states = reference(case, [(0, 4, 2), (4, 7, 0)], lower_bound)
    got = run(kda.chunk_kda, case, [2, 0], [0, 4, 7], lower_bound=lower_bound)
    assert got.shape == case["v"].shape
    torch.testing.assert_close(got[0].double(), want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(case["states"].double(), states, rtol=1e-5, atol=1e-5)


def test_decode_continues_where_prefill_ended(kda, case) -> None:
    whole, states = reference(case, [(0, 7, 1)], -5.0)
    parts = []
    for start, end in ((0, 5), (5, 6), (6, 7)):
        part = {**case, **{n: case[n][:, start:end] for n in ("q", "k", "v", "gate", "beta")}}
        function = kda.chunk_kda if start == 0 else kda.fused_sigmoid_gating_delta_rule_update
        parts.append(run(function, part, [1], [0, end - start], lower_bound=-5.0)[0])
    torch.testing.assert_close(torch.cat(parts).double(), whole, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(case["states"].double(), states, rtol=1e-5, atol=1e-5)


def test_verify_keeps_every_state_and_changes_none(kda, case) -> None:
    before = case["states"].clone()
    kept = torch.full((3, 7, HEADS, V_DIM, K_DIM), math.nan)
    want, _ = reference(case, [(0, 7, 4)], -5.0)
    got = run(
        kda.fused_sigmoid_gating_delta_rule_update,
        case,
        [4],
        [0, 7],
        lower_bound=-5.0,
        disable_state_update=True,
        intermediate_states_buffer=kept,
        intermediate_state_indices=torch.tensor([2]),
    )
    torch.testing.assert_close(got[0].double(), want, rtol=1e-5, atol=1e-5)
    assert torch.equal(case["states"], before)
    assert kept[:2].isnan().all() and not kept[2].isnan().any()
    for t in range(7):
        _, after = reference(case, [(0, t + 1, 4)], -5.0)
        torch.testing.assert_close(kept[2, t].double(), after[4], rtol=1e-5, atol=1e-5)


def test_what_it_cannot_do_is_refused(kda, case) -> None:
    with pytest.raises(NotImplementedError, match="no_buffer"):
        run(kda.chunk_kda, case, [0], [0, 7], output_intermediate_states=True)
    with pytest.raises(NotImplementedError, match="ReplaySSM"):
        run(kda.fused_sigmoid_gating_delta_rule_update, case, [0], [0, 7], cache_ring=True)
