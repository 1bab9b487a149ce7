# SPDX-License-Identifier: Apache-2.0
"""Kimi Delta Attention (KDA) under the signatures of SGLang's Triton kernels, in plain PyTorch.

KDA is the gated delta rule with a decay for each key channel. The recurrence, its state layout and the
treatment of padded slots are ``operators/gated_delta.py``'s; all of it runs in FP32.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .operators.gated_delta import Snapshots, delta_rule, expand_heads, l2_normalize


def decay(
    gate: Tensor, A_log: Tensor, dt_bias: Tensor, heads: int, k_dim: int, lower_bound: float | None
) -> Tensor:
    """The factor in (0, 1] by which each key channel's state shrinks, FP32 [tokens, heads, k_dim].

    ``gate`` holds ``tokens * heads * k_dim`` raw values, ``A_log`` one value a head, ``dt_bias`` one a
    channel. With x = gate + dt_bias the logarithm is ``-exp(A_log) * softplus(x)``, or, with a
    ``lower_bound`` (negative), ``lower_bound * sigmoid(exp(A_log) * x)``, which never falls below it.
    """
    x = gate.float().reshape(-1, heads, k_dim) + dt_bias.float().reshape(heads, k_dim)
    rate = A_log.float().reshape(heads, 1).exp()
    if lower_bound is None:
        return torch.exp(-rate * F.softplus(x))
    return torch.exp(lower_bound * torch.sigmoid(rate * x))


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decays: Tensor,
    beta: Tensor,
    states: Tensor,
    slots: Tensor,
    cu_seqlens: Tensor,
    normalize: bool,
    snapshots: Snapshots | None = None,
    update: bool = True,
) -> Tensor:
    heads = v.shape[2]
    q, k = (l2_normalize(x[0]) if normalize else x[0].float() for x in (q, k))
    out = delta_rule(
        expand_heads(q, heads),
        expand_heads(k, heads),
        v[0].float(),
        decays,
        beta.float().reshape(-1, heads),
        states,
        slots,
        cu_seqlens,
        snapshots,
        update,
    )
    return out.to(v.dtype)[None]


def chunk_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor,
    initial_state_indices: Tensor,
    cu_seqlens: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    use_qk_l2norm_in_kernel: bool = True,
    lower_bound: float | None = None,
    beta_is_raw: bool = False,
    output_intermediate_states: bool = False,
    track_state: Tensor | None = None,
    **_: object,
) -> Tensor:
    """Prefill of packed sequences: ``q``, ``k`` [1, tokens, k_heads, k_dim], ``v`` [1, tokens, v_heads,
    v_dim], raw gate ``g``, and ``beta``, before its sigmoid if ``beta_is_raw``.

    Updates the pool ``initial_state`` at ``initial_state_indices``. Returns [1, tokens, v_heads, v_dim] in
    ``v``'s dtype.
    """
    if output_intermediate_states or track_state is not None:
        raise NotImplementedError("no per-chunk states on a CPU: use --mamba-radix-cache-strategy no_buffer")
    return _attend(
        q,
        k,
        v,
        decay(g, A_log, dt_bias, v.shape[2], k.shape[3], lower_bound),
        torch.sigmoid(beta.float()) if beta_is_raw else beta,
        initial_state,
        initial_state_indices,
        cu_seqlens,
        use_qk_l2norm_in_kernel,
    )


def fused_sigmoid_gating_delta_rule_update(
    A_log: Tensor,
    dt_bias: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    initial_state_source: Tensor,
    initial_state_indices: Tensor,
    cu_seqlens: Tensor,
    use_qk_l2norm_in_kernel: bool = True,
    lower_bound: float | None = None,
    disable_state_update: bool = False,
    intermediate_states_buffer: Tensor | None = None,
    intermediate_state_indices: Tensor | None = None,
    retrieve_parent_token: Tensor | None = None,
    cache_ring: bool = False,
    **_: object,
) -> Tensor:
    """Decode and verify: as ``chunk_kda``, with raw gate ``a`` and raw beta ``b``.

    Verify passes ``disable_state_update`` and a buffer [rows, steps, v_heads, v_dim, k_dim] for the state
    after each token, from which the accepted one is committed.
    """
    if cache_ring:
        raise NotImplementedError("ReplaySSM's ring is not written on a CPU")
    snapshots = Snapshots.given(intermediate_states_buffer, intermediate_state_indices, retrieve_parent_token)
    return _attend(
        q,
        k,
        v,
        decay(a, A_log, dt_bias, v.shape[2], k.shape[3], lower_bound),
        torch.sigmoid(b.float()),
        initial_state_source,
        initial_state_indices,
        cu_seqlens,
        use_qk_l2norm_in_kernel,
        snapshots,
        update=not disable_state_update,
    )
