# SPDX-License-Identifier: Apache-2.0
"""Qwen3.5's decode step in float64 with the stock model's rounding points: what the fused steps must compute.

Written from the stock operators (GemmaRMSNorm, the Triton convolution update, the packed gated-delta-rule
decode, the gated norm, the fused QK norm and rotary embedding, softmax top-k, SwiGLU, the shared expert's
sigmoid gate). Tensors come in as the kernels see them; results are float64 values that a bf16 holds exactly
where the model stores bf16.
"""

from __future__ import annotations

import torch


def bf16(x: torch.Tensor) -> torch.Tensor:
    """Rounded to bf16 once (through fp32, whose rounding is 2^-16 of bf16's), as float64."""
    return x.float().to(torch.bfloat16).double()


def silu(x: torch.Tensor) -> torch.Tensor:
    return x / (1 + torch.exp(-x))


def gemma_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    x = x.double()
    inverse = torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon)
    return bf16(x * inverse * (1 + weight.double()))


def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return bf16(x.double() @ weight.double().T)


def square_sums(x: torch.Tensor) -> torch.Tensor:
    return x.double().square().unflatten(-1, (-1, 16)).sum(-1)


def convolution(y: torch.Tensor, weight: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """y: [rows, channels], weight: [channels, 4], state: [rows, channels, 3], oldest first."""
    window = torch.cat((state.double(), y.double().unsqueeze(-1)), -1)
    return bf16(silu(bf16(window * weight.double()).sum(-1)))


def delta_rule(mixed_qkv, ba, a_log, dt_bias, state, key_heads: int):
    """One token. state: [rows, value heads, 128 values, 128 keys]; returns (output, new state)."""
    value_heads, dim = state.shape[1], state.shape[-1]
    inner = key_heads * dim
    q, k, v = mixed_qkv.double().split((inner, inner, value_heads * dim), -1)
    q, k, v = (t.unflatten(-1, (-1, dim)) for t in (q, k, v))
    q, k = (t / torch.sqrt(t.square().sum(-1, keepdim=True) + 1e-6) for t in (q, k))
    q, k = ((t.repeat_interleave(value_heads // key_heads, 1)) for t in (q * dim**-0.5, k))
    b, a = ba.double().split(value_heads, -1)
    raw = a + dt_bias.double()
    gate = -torch.exp(a_log.double()) * torch.where(raw <= 20, torch.log1p(torch.exp(raw.clamp(max=20))), raw)
    beta = bf16(torch.sigmoid(b))
    state = state.double() * torch.exp(gate)[..., None, None]
    delta = (v - (state * k.unsqueeze(2)).sum(-1)) * beta.unsqueeze(-1)
    state = state + delta.unsqueeze(-1) * k.unsqueeze(2)
    return bf16((state * q.unsqueeze(2)).sum(-1)), state


def gated_norm(core: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """core, z: [rows, heads * 128]."""
    heads = core.double().unflatten(-1, (-1, weight.shape[0]))
    normed = heads * torch.rsqrt(heads.square().mean(-1, keepdim=True) + epsilon) * weight.double()
    return bf16(normed * silu(z.double().unflatten(-1, (-1, weight.shape[0])))).flatten(1)


def add_to_stream(x: torch.Tensor, product: torch.Tensor) -> torch.Tensor:
    return bf16(bf16(product) + x.double())


def rotate(x: torch.Tensor, cos_sin: torch.Tensor, rotary: int) -> torch.Tensor:
    """x: [rows, heads, 256], cos_sin: [rows, rotary]."""
    half = rotary // 2
    cosine, sine = cos_sin.double().unsqueeze(1).split(half, -1)
    first, second, rest = x.split((half, half, x.shape[-1] - rotary), -1)
    return bf16(torch.cat((first * cosine - second * sine, second * cosine + first * sine, rest), -1))


def prepare_qkv(qkv, q_norm, k_norm, cos_sin, heads: int, kv_heads: int, rotary: int, epsilon: float):
    """q, gate [rows, heads, 256], k, v [rows, kv_heads, 256] from the projection; cos_sin: [rows, rotary]."""
    units = qkv.double().unflatten(-1, (-1, 256))
    q, gate = units[:, : 2 * heads].unflatten(1, (heads, 2)).unbind(2)
    k, v = units[:, 2 * heads :].split(kv_heads, 1)
    q = rotate(gemma_norm(q, q_norm, epsilon), cos_sin, rotary)
    k = rotate(gemma_norm(k, k_norm, epsilon), cos_sin, rotary)
    return q, gate, k, v


def attention(q: torch.Tensor, gate: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """One row. q, gate: [heads, 256]; keys, values: [tokens, kv_heads, 256]; returns [heads * 256], gated."""
    group = q.shape[0] // keys.shape[1]
    keys, values = (t.double().repeat_interleave(group, 1) for t in (keys, values))
    weights = torch.softmax(torch.einsum("hd,thd->ht", q.double(), keys) * q.shape[-1] ** -0.5, -1)
    out = bf16(torch.einsum("ht,thd->hd", weights, values))
    return bf16(out * torch.sigmoid(gate.double())).flatten()


def top_k(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Experts by falling logit, the lowest number first among equals, and renormalised softmax weights."""
    values, ids = torch.sort(logits.double(), dim=-1, descending=True, stable=True)
    return ids[..., :count], torch.softmax(values[..., :count], -1)


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, -1)
    return bf16(silu(gate) * up)
