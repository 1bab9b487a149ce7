# SPDX-License-Identifier: Apache-2.0
"""Convolution and gated delta rule against scalar references written from their definitions."""

from __future__ import annotations

import math

import pytest
import torch

HEADS_K, HEADS_V, DIM = 2, 4, 8
SLOTS = 6


def reference_conv(x: torch.Tensor, weight: torch.Tensor, past: torch.Tensor) -> torch.Tensor:
    """x [channels, tokens], past [channels, width - 1]: one multiply-add at a time."""
    stream = torch.cat([past, x], dim=-1).double()
    width = weight.shape[1]
    out = torch.zeros(x.shape, dtype=torch.double)
    for c in range(x.shape[0]):
        for t in range(x.shape[1]):
            total = sum(float(stream[c, t + j]) * float(weight[c, j]) for j in range(width))
            out[c, t] = total / (1 + math.exp(-total))
    return out.float()


@pytest.fixture()
def conv():
    torch.manual_seed(0)
    return torch.randn(5, 4), torch.randn(SLOTS, 5, 3)


def test_prefill_convolution_continues_a_state_or_starts_from_zero(gated_delta, conv) -> None:
    weight, states = conv
    x = torch.randn(5, 9)
    before = states.clone()
    got = gated_delta.causal_conv1d_fn_cpu(
        x,
        weight,
        None,
        "silu",
        states,
        has_initial_state=torch.tensor([True, False]),
        cache_indices=torch.tensor([3, 1]),
        query_start_loc=torch.tensor([0, 2, 9]),
    )
    torch.testing.assert_close(got[:, :2], reference_conv(x[:, :2], weight, before[3]))
    torch.testing.assert_close(got[:, 2:], reference_conv(x[:, 2:], weight, torch.zeros(5, 3)))
    torch.testing.assert_close(states[3], torch.cat([before[3][:, 2:], x[:, :2]], dim=1))
    torch.testing.assert_close(states[1], x[:, -3:])
    untouched = [0, 2, 4, 5]
    torch.testing.assert_close(states[untouched], before[untouched])


def test_decode_steps_equal_one_prefill(gated_delta, conv) -> None:
    weight, states = conv
    before = states.clone()
    x = torch.randn(4, 2, 5)  # token, request, channel
    slots = torch.tensor([4, 0])
    got = torch.stack(
        [gated_delta.causal_conv1d_update_cpu(x[t], states, weight, None, "silu", slots) for t in range(4)]
    )
    for row, slot in enumerate(slots.tolist()):
        want = reference_conv(x[:, row].T, weight, before[slot])
        torch.testing.assert_close(got[:, row].T, want)
        torch.testing.assert_close(states[slot], torch.cat([before[slot], x[:, row].T], dim=1)[:, -3:])


def test_a_padded_request_yields_zeros_and_touches_nothing(gated_delta, conv) -> None:
    weight, states = conv
    before = states.clone()
    got = gated_delta.causal_conv1d_update_cpu(
        torch.randn(2, 5), states, weight, None, "silu", torch.tensor([-1, 2])
    )
    assert torch.equal(got[0], torch.zeros(5)) and got[1].abs().sum() > 0
    assert torch.equal(states[[0, 1, 3, 4, 5]], before[[0, 1, 3, 4, 5]])


def test_verify_windows_hold_the_state_after_each_token(gated_delta, conv) -> None:
    weight, states = conv
    before = states.clone()
    x = torch.randn(2, 5, 4)
    slots, rows = torch.tensor([5, 2]), torch.tensor([0, 1])
    windows = torch.zeros(3, 4, 5, 3)
    got = gated_delta.causal_conv1d_update_cpu(
        x,
        states,
        weight,
        None,
        "silu",
        slots,
        intermediate_conv_window=windows,
        intermediate_state_indices=rows,
    )
    for row, slot in enumerate(slots.tolist()):
        torch.testing.assert_close(got[row], reference_conv(x[row], weight, before[slot]))
        for t in range(4):
            want = torch.cat([before[slot], x[row, :, : t + 1]], dim=1)[:, -3:]
            torch.testing.assert_close(windows[row, t], want)
    assert torch.equal(windows[2], torch.zeros(4, 5, 3))


def test_tree_verify_follows_each_tokens_ancestors(gated_delta, conv) -> None:
    #      0
    #    1   2
    #   3 4
    weight, states = conv
    past = states[1].clone()
    x = torch.randn(1, 5, 5)
    next_token = torch.tensor([[1, 3, -1, -1, -1]])
    next_sibling = torch.tensor([[-1, 2, -1, 4, -1]])
    parents = torch.full((1, 5), -1)
    windows = torch.zeros(1, 5, 5, 3)
    got = gated_delta.causal_conv1d_update_cpu(
        x,
        states,
        weight,
        None,
        "silu",
        torch.tensor([1]),
        intermediate_conv_window=windows,
        intermediate_state_indices=torch.tensor([0]),
        retrieve_next_token=next_token,
        retrieve_next_sibling=next_sibling,
        retrieve_parent_token=parents,
    )
    assert parents.tolist() == [[0, 0, 0, 1, 1]]
    for token, path in {0: [0], 1: [0, 1], 2: [0, 2], 3: [0, 1, 3], 4: [0, 1, 4]}.items():
        want = reference_conv(x[0][:, path], weight, past)[:, -1]
        torch.testing.assert_close(got[0, :, token], want)
        torch.testing.assert_close(windows[0, token], torch.cat([past, x[0][:, path]], dim=1)[:, -3:])


def reference_delta(q, k, v, log_decay, beta, state):
    """One head at a time, in FP64. q, k [T, HK, D]; v [T, HV, D]; state [HV, D, D]."""
    state = state.double().clone()
    out = torch.zeros(v.shape, dtype=torch.double)
    history = []
    for t in range(v.shape[0]):
        for h in range(v.shape[1]):
            kh = h // (v.shape[1] // k.shape[1])
            qt, kt = q[t, kh].double(), k[t, kh].double()
            qt, kt = qt / (qt @ qt + 1e-6).sqrt(), kt / (kt @ kt + 1e-6).sqrt()
            s = state[h] * math.exp(float(log_decay[t, h]))
            s = s + torch.outer((v[t, h].double() - s @ kt) * float(beta[t, h]), kt)
            state[h] = s
            out[t, h] = s @ qt / math.sqrt(q.shape[-1])
        history.append(state.clone())
    return out.float(), torch.stack(history).float()


@pytest.fixture()
def rule():
    torch.manual_seed(1)
    tokens = 9
    return {
        "q": torch.randn(1, tokens, HEADS_K, DIM),
        "k": torch.randn(1, tokens, HEADS_K, DIM),
        "v": torch.randn(1, tokens, HEADS_V, DIM),
        "a": torch.randn(tokens, HEADS_V),
        "b": torch.randn(tokens, HEADS_V),
        "A_log": torch.rand(HEADS_V),
        "dt_bias": torch.randn(HEADS_V),
        "states": torch.randn(SLOTS, HEADS_V, DIM, DIM),
    }


def gates(rule):
    log_decay = -rule["A_log"].exp() * torch.log1p(torch.exp(rule["a"] + rule["dt_bias"]))
    return log_decay, 1 / (1 + torch.exp(-rule["b"]))


def test_gating_is_the_definition(gated_delta, rule) -> None:
    g, beta = gated_delta.fused_gdn_gating(rule["A_log"], rule["a"], rule["b"], rule["dt_bias"])
    want_g, want_beta = gates(rule)
    torch.testing.assert_close(g[0], want_g)
    torch.testing.assert_close(beta[0], want_beta)


def test_prefill_equals_the_scalar_recurrence(gated_delta, rule) -> None:
    log_decay, beta = gates(rule)
    states = rule["states"]
    before = states.clone()
    slots = torch.tensor([2, 5, 0])
    bounds = [0, 3, 3, 9]
    out, final = gated_delta.chunk_gated_delta_rule(
        rule["q"], rule["k"], rule["v"], log_decay[None], beta[None], states, True,
        torch.tensor(bounds), False, True, slots,
    )  # fmt: skip
    for i, slot in enumerate(slots.tolist()):
        span = slice(bounds[i], bounds[i + 1])
        if bounds[i] == bounds[i + 1]:
            assert torch.equal(states[slot], before[slot])
            continue
        want, history = reference_delta(
            rule["q"][0, span],
            rule["k"][0, span],
            rule["v"][0, span],
            log_decay[span],
            beta[span],
            before[slot],
        )
        torch.testing.assert_close(out[0, span], want, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(states[slot], history[-1], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(final, states[slots])


def test_verify_keeps_the_pool_and_snapshots_every_token(gated_delta, rule) -> None:
    log_decay, beta = gates(rule)
    states = rule["states"]
    before = states.clone()
    buffer = torch.zeros(4, 3, HEADS_V, DIM, DIM)
    slots = torch.tensor([1, -1, 4])
    out = gated_delta.fused_sigmoid_gating_delta_rule_update(
        rule["A_log"], rule["dt_bias"], rule["q"], rule["k"], rule["v"], rule["a"], rule["b"], states, slots,
        torch.tensor([0, 3, 6, 9]), disable_state_update=True, intermediate_states_buffer=buffer,
        intermediate_state_indices=torch.tensor([3, 0, 1]), cache_steps=3,
    )  # fmt: skip
    assert torch.equal(states, before), "verify must not advance the state"
    assert torch.equal(out[0, 3:6], torch.zeros(3, HEADS_V, DIM)), "a padded request"
    for i, row in ((0, 3), (2, 1)):
        span = slice(3 * i, 3 * i + 3)
        want, history = reference_delta(
            rule["q"][0, span], rule["k"][0, span], rule["v"][0, span], log_decay[span], beta[span],
            before[int(slots[i])],
        )  # fmt: skip
        torch.testing.assert_close(out[0, span], want, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(buffer[row], history, atol=1e-5, rtol=1e-5)


def test_tree_verify_starts_each_token_from_its_parent(gated_delta, rule) -> None:
    log_decay, beta = gates(rule)
    parents = torch.tensor([[0, 0, 0, 1, 1, 2, 3, 3, 4]])
    buffer = torch.zeros(1, 9, HEADS_V, DIM, DIM)
    out = gated_delta.fused_sigmoid_gating_delta_rule_update(
        rule["A_log"], rule["dt_bias"], rule["q"], rule["k"], rule["v"], rule["a"], rule["b"], rule["states"],
        torch.tensor([3]), torch.tensor([0, 9]), disable_state_update=True, intermediate_states_buffer=buffer,
        intermediate_state_indices=torch.tensor([0]), cache_steps=9, retrieve_parent_token=parents,
    )  # fmt: skip
    for token in range(9):
        path = [token]
        while path[0] != 0:
            path.insert(0, int(parents[0, path[0]]))
        want, history = reference_delta(
            rule["q"][0, path], rule["k"][0, path], rule["v"][0, path], log_decay[path], beta[path],
            rule["states"][3],
        )  # fmt: skip
        torch.testing.assert_close(out[0, token], want[-1], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(buffer[0, token], history[-1], atol=1e-5, rtol=1e-5)


def test_unsupported_layouts_are_refused(gated_delta, rule) -> None:
    with pytest.raises(ValueError, match="head_first"):
        gated_delta.chunk_gated_delta_rule(
            rule["q"], rule["k"], rule["v"], rule["a"], rule["b"], rule["states"], True,
            torch.tensor([0, 9]), True, True, torch.tensor([0]),
        )  # fmt: skip
