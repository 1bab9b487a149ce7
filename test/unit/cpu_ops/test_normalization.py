# SPDX-License-Identifier: Apache-2.0
"""Norms, gates and splits against their definitions."""

from __future__ import annotations

import torch


def rms(x: torch.Tensor, eps: float) -> torch.Tensor:
    return x / (x.double().pow(2).mean(-1, keepdim=True) + eps).sqrt().float()


def test_qk_norm_with_gate_splits_by_head(normalization) -> None:
    torch.manual_seed(0)
    rows, heads, dim = 3, 2, 4
    q, gate = torch.randn(rows, heads, dim), torch.randn(rows, heads, dim)
    k = torch.randn(rows, 1, dim)
    packed = torch.cat([q, gate], dim=-1).reshape(rows, -1)
    qw, kw = torch.randn(dim), torch.randn(dim)
    got_q, got_k, got_gate = normalization.fused_qk_gemma_rmsnorm_with_gate(
        packed, k.reshape(rows, -1), qw, kw, 1e-6, dim, heads
    )
    torch.testing.assert_close(got_q, rms(q, 1e-6) * (1 + qw))
    torch.testing.assert_close(got_k, rms(k, 1e-6) * (1 + kw))
    assert torch.equal(got_gate, gate)
    plain_q, plain_k = normalization.fused_qk_gemma_rmsnorm(
        q.reshape(rows, -1), k.reshape(rows, -1), qw, kw, 1e-6, dim
    )
    torch.testing.assert_close(plain_q.view_as(q), got_q)
    torch.testing.assert_close(plain_k.view_as(k), got_k)


def test_projection_split_returns_fresh_tensors_in_order(normalization) -> None:
    rows, hk, hv, dk, dv = 2, 1, 2, 3, 4
    qkvz = torch.arange(rows * (2 * hk * dk + 2 * hv * dv), dtype=torch.float).view(rows, -1)
    ba = torch.arange(rows * 2 * hv, dtype=torch.float).view(rows, -1)
    qkv, z, b, a = normalization.fused_qkvzba_split_reshape_cat_contiguous(qkvz, ba, hk, hv, dk, dv)
    assert torch.equal(qkv, qkvz[:, : 2 * hk * dk + hv * dv])
    assert torch.equal(z, qkvz[:, 2 * hk * dk + hv * dv :].view(rows, hv, dv))
    assert torch.equal(b, ba[:, :hv]) and torch.equal(a, ba[:, hv:])
    qkvz.zero_()
    assert qkv.abs().sum() > 0, "the split must not alias its input"


def test_gates_in_bfloat16_round_once(normalization) -> None:
    torch.manual_seed(1)
    x = torch.randn(4, 8).bfloat16()
    gate = torch.randn(4, 2, 4).bfloat16()
    want = (x.float() * torch.sigmoid(gate.float()).view(4, 8)).bfloat16()
    normalization.fused_sigmoid_mul(x, gate)
    assert torch.equal(x, want)
    weight = torch.randn(4).bfloat16()
    y = torch.randn(3, 4).bfloat16()
    z = torch.randn(3, 4).bfloat16()
    silu = z.float() / (1 + torch.exp(-z.float()))
    want = (rms(y.float(), 1e-6) * weight.float() * silu).bfloat16()
    torch.testing.assert_close(normalization.fused_rmsnorm_gated(y, weight, z, 1e-6), want)
