# SPDX-License-Identifier: Apache-2.0
"""Causal convolution and gated delta rule: prefill, decode and verify of GDN and KDA layers.

State layouts are SGLang's: convolution [slots, channels, width - 1] with the oldest input first;
recurrent [slots, v_heads, v_dim, k_dim]. The recurrence runs in FP32, one token a step, over all
requests of the batch at once; the state is rounded to the pool's dtype when a call ends. A negative slot
marks a padded request: its outputs are zero and no state is touched.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

L2_EPS = 1e-6


def l2_normalize(x: Tensor) -> Tensor:
    """``x / sqrt(sum(x^2) + 1e-6)`` over the last dimension, in FP32."""
    x = x.float()
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + L2_EPS)


def _bounds(cu_seqlens: Tensor) -> list[tuple[int, int]]:
    return list(itertools.pairwise(cu_seqlens.tolist()))


# Convolution ------------------------------------------------------------------------------------


def _convolve(window: Tensor, weight: Tensor, bias: Tensor | None, silu: bool) -> Tensor:
    """Depthwise causal convolution of ``window`` [batch, channels, width - 1 + tokens], in FP32."""
    out = F.conv1d(
        window, weight.float()[:, None], None if bias is None else bias.float(), groups=weight.shape[0]
    )
    return F.silu(out) if silu else out


def causal_conv1d_fwd(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    conv_states: Tensor,
    query_start_loc: Tensor,
    cache_indices: Tensor | None,
    has_initial_state: Tensor | None,
    silu_activation: bool,
    pad_slot_id: int,
    is_vnni: bool,
) -> Tensor:
    """Prefill convolution of packed sequences.

    ``x`` [channels, tokens], ``weight`` [channels, width]; sequence i is
    ``x[:, query_start_loc[i] : query_start_loc[i + 1]]`` and owns slot ``cache_indices[i]`` (slot i
    without them), whose state it continues where ``has_initial_state[i]`` and overwrites. Returns the
    convolved ``x``. ``is_vnni`` (packed weights of the AMX build) is accepted and ignored: nothing packs
    weights without AMX.
    """
    channels, width = weight.shape
    out = torch.zeros_like(x)
    for i, (start, end) in enumerate(_bounds(query_start_loc)):
        slot = i if cache_indices is None else int(cache_indices[i])
        if end <= start or slot == pad_slot_id:
            continue
        fresh = x[:, start:end].float()
        past = fresh.new_zeros(channels, width - 1)
        if has_initial_state is not None and bool(has_initial_state[i]):
            past = conv_states[slot].float()
        window = torch.cat([past, fresh], dim=-1)
        out[:, start:end] = _convolve(window[None], weight, bias, silu_activation)[0].to(x.dtype)
        conv_states[slot] = window[:, -(width - 1) :].to(conv_states.dtype)
    return out


def ancestors(parents: Tensor, depth: int) -> Tensor:
    """Indices of each verify token's ``depth`` latest predecessors and itself, oldest first.

    ``parents`` [batch, tokens] names each token's parent in the window; the root's parent is ignored.
    The result [batch, tokens, depth + 1] indexes ``concat(past state (depth entries), window tokens)``.
    """
    tokens = torch.arange(parents.shape[1]).expand_as(parents)
    steps = [tokens]
    current = tokens
    for _ in range(depth):
        inside = current > 0
        stepped = torch.gather(parents.long(), 1, current.clamp(min=0))
        current = torch.where(inside, stepped, current - 1)
        steps.append(current)
    return torch.stack(steps[::-1], dim=-1) + depth


def tree_parents(next_token: Tensor, next_sibling: Tensor) -> Tensor:
    """Parent of each token of a draft tree, from first-child and next-sibling links [batch, tokens].

    A missing link is -1. The root's own entry is 0.
    """
    parents = torch.zeros_like(next_token)
    for b in range(next_token.shape[0]):
        for t in range(next_token.shape[1]):
            child = int(next_token[b, t])
            while child >= 0:
                parents[b, child] = t
                child = int(next_sibling[b, child])
    return parents


def conv1d_step(
    x: Tensor,
    conv_states: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    silu: bool,
    slots: Tensor,
    pad_slot_id: int = -1,
    windows: Tensor | None = None,
    window_rows: Tensor | None = None,
    parents: Tensor | None = None,
) -> Tensor:
    """Convolution of one decode token or of one verify window a request; updates ``conv_states``.

    ``x`` [batch, channels, tokens], request i owning slot ``slots[i]``. With ``windows``
    [rows, tokens, channels, width - 1] the state after each token is stored in row ``window_rows[i]``;
    with ``parents`` [batch, tokens] the window is a draft tree and each token follows its ancestors.
    Returns the convolved ``x``.
    """
    depth = weight.shape[1] - 1
    live = (slots != pad_slot_id).nonzero().flatten()
    out = torch.zeros_like(x)
    if live.numel() == 0:
        return out
    owned = slots[live].long()
    stream = torch.cat([conv_states[owned].float(), x[live].float()], dim=-1)
    batch, channels, tokens = live.numel(), x.shape[1], x.shape[2]
    if parents is None:
        taps = stream.unfold(-1, depth + 1, 1).transpose(1, 2)
    else:
        index = ancestors(parents[live], depth).reshape(batch, 1, -1).expand(-1, channels, -1)
        taps = stream.gather(2, index).view(batch, channels, tokens, depth + 1).transpose(1, 2)
    y = (taps * weight.float()).sum(-1)
    if bias is not None:
        y = y + bias.float()
    out[live] = (F.silu(y) if silu else y).transpose(1, 2).to(x.dtype)
    conv_states[owned] = stream[..., -depth:].to(conv_states.dtype)
    if windows is not None:
        windows[window_rows[live].long(), :tokens] = taps[..., 1:].to(windows.dtype)
    return out


def causal_conv1d_update(
    x: Tensor,
    conv_states: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    silu_activation: bool,
    cache_seqlens: Tensor | None,
    conv_state_indices: Tensor | None,
    pad_slot_id: int,
    is_vnni: bool,
) -> Tensor:
    """The decode operator: ``x`` [batch, channels], one token a request."""
    slots = torch.arange(x.shape[0]) if conv_state_indices is None else conv_state_indices
    return conv1d_step(
        x.unsqueeze(-1), conv_states, weight, bias, silu_activation, slots, pad_slot_id
    ).squeeze(-1)


# Recurrence -------------------------------------------------------------------------------------


@dataclass
class Snapshots:
    """Where a verify call keeps the state after each of its tokens.

    ``states`` [rows, steps, v_heads, v_dim, k_dim]; request i writes row ``rows[i]``. ``parents``
    [batch, steps] makes the window a draft tree: a token starts from the state after its parent.
    """

    states: Tensor
    rows: Tensor
    parents: Tensor | None = None

    @classmethod
    def given(cls, states: Tensor | None, rows: Tensor | None, parents: Tensor | None) -> Snapshots | None:
        """From an operator's optional arguments; None where the caller keeps no state."""
        if states is None:
            return None
        assert rows is not None
        return cls(states, rows, parents)


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    beta: Tensor,
    states: Tensor,
    slots: Tensor,
    cu_seqlens: Tensor,
    snapshots: Snapshots | None = None,
    update: bool = True,
) -> Tensor:
    """The gated delta rule over packed sequences, all in FP32.

    ``q``, ``k`` [tokens, v_heads, k_dim] (already normalised and expanded to the value heads), ``v``
    [tokens, v_heads, v_dim], ``decay`` [tokens, v_heads, k_dim or 1] in (0, 1], ``beta``
    [tokens, v_heads]. For each token: S = decay * S; S += (v - S k) beta k^T; out = S q / sqrt(k_dim).
    Continues ``states[slots[i]]`` and, with ``update``, writes it back. Returns [tokens, v_heads, v_dim].
    """
    out = torch.zeros_like(v)
    spans = _bounds(cu_seqlens)
    rows = [i for i, (start, end) in enumerate(spans) if end > start and int(slots[i]) >= 0]
    rows.sort(key=lambda i: spans[i][1] - spans[i][0], reverse=True)
    if not rows:
        return out
    order = torch.tensor(rows)
    owned = slots[order].long()
    starts = torch.tensor([spans[i][0] for i in rows])
    lengths = [spans[i][1] - spans[i][0] for i in rows]
    state = states[owned].float()
    scale = q.shape[-1] ** -0.5
    for t in range(lengths[0]):
        n = sum(length > t for length in lengths)
        at = starts[:n] + t
        s = state[:n]
        if snapshots is not None and snapshots.parents is not None and t > 0:
            parent = snapshots.parents[order[:n], t].long()
            s = snapshots.states[snapshots.rows[order[:n]].long(), parent].float()
        s = s * decay[at][:, :, None, :]
        error = (v[at] - torch.einsum("nhvk,nhk->nhv", s, k[at])) * beta[at][:, :, None]
        s = s + error[..., None] * k[at][:, :, None, :]
        out[at] = torch.einsum("nhvk,nhk->nhv", s, q[at]) * scale
        state[:n] = s
        if snapshots is not None:
            snapshots.states[snapshots.rows[order[:n]].long(), t] = s.to(snapshots.states.dtype)
    if update:
        states[owned] = state.to(states.dtype)
    return out


def expand_heads(x: Tensor, heads: int) -> Tensor:
    """[tokens, k_heads, dim] repeated to ``heads`` value heads; neighbours share a key head."""
    return x if x.shape[-2] == heads else x.repeat_interleave(heads // x.shape[-2], dim=-2)


def gdn_log_decay(
    A_log: Tensor, a: Tensor, dt_bias: Tensor, softplus_beta: float = 1.0, softplus_threshold: float = 20.0
) -> Tensor:
    """Logarithm of GDN's decay: ``-exp(A_log) * softplus(a + dt_bias)``, FP32, shape of ``a``."""
    return -A_log.float().exp() * F.softplus(a.float() + dt_bias.float(), softplus_beta, softplus_threshold)


def fused_gdn_gating(A_log: Tensor, a: Tensor, b: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    """Log decay (FP32) and beta (``b``'s dtype) of a prefill, each [1, tokens, v_heads]."""
    return gdn_log_decay(A_log, a, dt_bias)[None], torch.sigmoid(b.float())[None].to(b.dtype)


def chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor,
    output_final_state: bool,
    cu_seqlens: Tensor,
    head_first: bool,
    use_qk_l2norm_in_kernel: bool,
    initial_state_indices: Tensor,
) -> tuple[Tensor, Tensor]:
    """GDN prefill: ``q``, ``k`` [1, tokens, k_heads, k_dim], ``v`` [1, tokens, v_heads, v_dim], log decay
    ``g`` and ``beta`` [1, tokens, v_heads]. Updates the pool ``initial_state`` at
    ``initial_state_indices``; returns the output and, as the final state, the pool's rows."""
    if head_first:
        raise ValueError(
            "chunk_gated_delta_rule_cpu takes [1, tokens, heads, dim]; head_first is not supported"
        )
    heads = v.shape[2]
    q, k = (l2_normalize(x[0]) if use_qk_l2norm_in_kernel else x[0].float() for x in (q, k))
    out = delta_rule(
        expand_heads(q, heads),
        expand_heads(k, heads),
        v[0].float(),
        g[0].float().exp()[..., None],
        beta[0].float(),
        initial_state,
        initial_state_indices,
        cu_seqlens,
    )
    return out.to(v.dtype)[None], initial_state[initial_state_indices.long().clamp(min=0)]


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
    softplus_beta: float = 1.0,
    softplus_threshold: float = 20.0,
    is_kda: bool = False,
    disable_state_update: bool = False,
    intermediate_states_buffer: Tensor | None = None,
    intermediate_state_indices: Tensor | None = None,
    cache_steps: int | None = None,
    retrieve_parent_token: Tensor | None = None,
) -> Tensor:
    """GDN decode and verify, gates included.

    Shapes as in ``chunk_gated_delta_rule``; ``a``, ``b`` [tokens, v_heads]. Verify passes
    ``disable_state_update`` and a buffer [rows, steps, v_heads, v_dim, k_dim] for the state after each
    token, from which the accepted one is committed. Returns [1, tokens, v_heads, v_dim].
    """
    if is_kda:
        raise ValueError("fused_sigmoid_gating_delta_rule_update_cpu is GDN's; KDA's is in cpu/kda.py")
    heads = v.shape[2]
    q, k = (l2_normalize(x[0]) if use_qk_l2norm_in_kernel else x[0].float() for x in (q, k))
    log_decay = gdn_log_decay(A_log, a.reshape(-1, heads), dt_bias, softplus_beta, softplus_threshold)
    snapshots = Snapshots.given(intermediate_states_buffer, intermediate_state_indices, retrieve_parent_token)
    out = delta_rule(
        expand_heads(q, heads),
        expand_heads(k, heads),
        v[0].float(),
        log_decay.exp()[..., None],
        torch.sigmoid(b.reshape(-1, heads).float()),
        initial_state_source,
        initial_state_indices,
        cu_seqlens,
        snapshots,
        update=not disable_state_update,
    )
    return out.to(v.dtype)[None]


# The callables that SGLang's linear-attention backends import -----------------------------------


def causal_conv1d_fn_cpu(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str | None,
    conv_states: Tensor,
    has_initial_state: Tensor,
    cache_indices: Tensor,
    query_start_loc: Tensor,
    seq_lens_cpu: Sequence[int] | None = None,
    **_: object,
) -> Tensor:
    """Prefill convolution under the signature of SGLang's ``causal_conv1d_fn``."""
    silu = activation in ("silu", "swish")
    return causal_conv1d_fwd(
        x, weight, bias, conv_states, query_start_loc, cache_indices, has_initial_state, silu, -1, False
    )


def causal_conv1d_update_cpu(
    x: Tensor,
    conv_states: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str | None,
    conv_state_indices: Tensor,
    intermediate_conv_window: Tensor | None = None,
    intermediate_state_indices: Tensor | None = None,
    retrieve_next_token: Tensor | None = None,
    retrieve_next_sibling: Tensor | None = None,
    retrieve_parent_token: Tensor | None = None,
) -> Tensor:
    """Decode ([batch, channels]) and verify ([batch, channels, tokens]) under SGLang's signature.

    In tree verify it also fills ``retrieve_parent_token``, which the recurrence reads.
    """
    silu = activation in ("silu", "swish")
    if x.dim() == 2:
        return conv1d_step(x.unsqueeze(-1), conv_states, weight, bias, silu, conv_state_indices).squeeze(-1)
    parents = None
    if retrieve_next_token is not None:
        parents = tree_parents(retrieve_next_token, retrieve_next_sibling)
        retrieve_parent_token.copy_(parents)
    return conv1d_step(
        x,
        conv_states,
        weight,
        bias,
        silu,
        conv_state_indices,
        windows=intermediate_conv_window,
        window_rows=intermediate_state_indices,
        parents=parents,
    )


OPERATORS = {
    "causal_conv1d_fwd_cpu(Tensor x, Tensor weight, Tensor? bias, Tensor(a!) conv_states,"
    " Tensor query_start_loc, Tensor? cache_indices, Tensor? has_initial_state, bool silu_activation,"
    " int pad_slot_id, bool is_vnni) -> Tensor": causal_conv1d_fwd,
    "causal_conv1d_update_cpu(Tensor x, Tensor(a!) conv_states, Tensor weight, Tensor? bias,"
    " bool silu_activation, Tensor? cache_seqlens, Tensor? conv_state_indices, int pad_slot_id,"
    " bool is_vnni) -> Tensor": causal_conv1d_update,
    "fused_gdn_gating_cpu(Tensor A_log, Tensor a, Tensor b, Tensor dt_bias) -> (Tensor, Tensor)": (
        fused_gdn_gating
    ),
    "chunk_gated_delta_rule_cpu(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta,"
    " Tensor(a!) initial_state, bool output_final_state, Tensor cu_seqlens, bool head_first,"
    " bool use_qk_l2norm_in_kernel, Tensor initial_state_indices) -> (Tensor, Tensor)": (
        chunk_gated_delta_rule
    ),
    "fused_sigmoid_gating_delta_rule_update_cpu(Tensor A_log, Tensor dt_bias, Tensor q, Tensor k, Tensor v,"
    " Tensor a, Tensor b, Tensor(a!) initial_state_source, Tensor initial_state_indices, Tensor cu_seqlens,"
    " bool use_qk_l2norm_in_kernel=True, float softplus_beta=1.0, float softplus_threshold=20.0,"
    " bool is_kda=False, bool disable_state_update=False, Tensor(b!)? intermediate_states_buffer=None,"
    " Tensor? intermediate_state_indices=None, int? cache_steps=None,"
    " Tensor? retrieve_parent_token=None) -> Tensor": fused_sigmoid_gating_delta_rule_update,
}
