# SPDX-License-Identifier: Apache-2.0
"""Norms, gates and splits of the Qwen3.5 layers. Statistics in FP32, results in the input's dtype."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def unit_rms(x: Tensor, eps: float) -> Tensor:
    """``x`` in FP32, divided by the root mean square of its last dimension."""
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def gemma_rmsnorm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm whose stored ``weight`` [D] is the offset from one."""
    return (unit_rms(x, eps) * (1.0 + weight.float())).to(x.dtype)


def fused_sigmoid_mul(x: Tensor, gate: Tensor) -> None:
    """``x *= sigmoid(gate)``, in place; both hold the same number of elements."""
    x.copy_(x.float() * torch.sigmoid(gate.float()).view_as(x))


def fused_qk_gemma_rmsnorm(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float, head_dim: int
) -> tuple[Tensor, Tensor]:
    """Per-head norm of q and k; returns [rows * heads, head_dim] of each."""
    return (
        gemma_rmsnorm(q.reshape(-1, head_dim), q_weight, eps),
        gemma_rmsnorm(k.reshape(-1, head_dim), k_weight, eps),
    )


def fused_qk_gemma_rmsnorm_with_gate(
    q_gate: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float, head_dim: int, num_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Splits ``q_gate`` [rows, heads * 2 * head_dim] into q and its output gate, and norms q and k.

    Returns q [rows, heads, head_dim], k [rows, kv_heads, head_dim], gate [rows, heads, head_dim].
    """
    q, gate = q_gate.reshape(-1, num_heads, 2 * head_dim).chunk(2, dim=-1)
    k = k.reshape(k.shape[0], -1, head_dim)
    return (
        gemma_rmsnorm(q, q_weight, eps).contiguous(),
        gemma_rmsnorm(k, k_weight, eps),
        gate.clone(memory_format=torch.contiguous_format),
    )


def fused_qkvzba_split_reshape_cat_contiguous(
    qkvz: Tensor, ba: Tensor, k_heads: int, v_heads: int, k_dim: int, v_dim: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Splits the two input projections of a GDN layer.

    ``qkvz`` is [rows, q | k | v | z], ``ba`` is [rows, b | a]. Returns q|k|v [rows, ...],
    z [rows, v_heads, v_dim], b and a [rows, v_heads].
    """
    qkv, z = qkvz.split([2 * k_heads * k_dim + v_heads * v_dim, v_heads * v_dim], dim=-1)
    b, a = ba.split([v_heads, v_heads], dim=-1)
    fresh = {"memory_format": torch.contiguous_format}
    return qkv.clone(**fresh), z.clone(**fresh).view(-1, v_heads, v_dim), b.clone(**fresh), a.clone(**fresh)


def rmsnorm_gated(x: Tensor, weight: Tensor | None, gate: Tensor, eps: float, activation: str) -> Tensor:
    """``rmsnorm(x) * weight * activation(gate)`` over the last dimension; "silu" (or "swish") or
    "sigmoid".
    """
    normed = unit_rms(x, eps)
    if weight is not None:
        normed = normed * weight.float()
    act = torch.sigmoid if activation == "sigmoid" else F.silu
    return (normed * act(gate.float())).to(x.dtype)


def fused_rmsnorm_gated(x: Tensor, weight: Tensor | None, gate: Tensor, eps: float) -> Tensor:
    """``rmsnorm_gated`` with SiLU."""
    return rmsnorm_gated(x, weight, gate, eps, "silu")


OPERATORS = {
    "fused_sigmoid_mul_cpu(Tensor(a!) x, Tensor gate) -> ()": fused_sigmoid_mul,
    "fused_qk_gemma_rmsnorm_cpu(Tensor q, Tensor k, Tensor q_weight, Tensor k_weight, float eps,"
    " int head_dim) -> (Tensor, Tensor)": fused_qk_gemma_rmsnorm,
    "fused_qk_gemma_rmsnorm_with_gate_cpu(Tensor q_gate, Tensor k, Tensor q_weight, Tensor k_weight,"
    " float eps, int head_dim, int num_heads) -> (Tensor, Tensor, Tensor)": fused_qk_gemma_rmsnorm_with_gate,
    "fused_qkvzba_split_reshape_cat_contiguous_cpu(Tensor qkvz, Tensor ba, int k_heads, int v_heads,"
    " int k_dim, int v_dim) -> (Tensor, Tensor, Tensor, Tensor)": fused_qkvzba_split_reshape_cat_contiguous,
    "fused_rmsnorm_gated_cpu(Tensor x, Tensor? weight, Tensor gate, float eps) -> Tensor": (
        fused_rmsnorm_gated
    ),
}
