# SPDX-License-Identifier: Apache-2.0
"""The gated delta rule over whole sequences, in chunks, so that it is matrix products and can be trained.

A head keeps a state ``S`` (key width x value width). A token decays it by ``exp(g)``, then writes the part of
its value that the state does not already give for its key: ``S += k (beta (v - k S))``; its output is
``q S``. Inside a chunk these writes depend on each other linearly, with a unit lower-triangular system; its
inverse turns a chunk into matrix products, and only the state is carried from chunk to chunk.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

CHUNK = 64


def gated_delta(query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, beta: Tensor) -> Tensor:
    """Outputs of shape ``value``. Queries, keys and values: (batch, tokens, heads, width), any scale; they
    are normalised here. ``log_decay`` (at most 0) and ``beta``: (batch, tokens, heads). Computes in FP32.
    """
    tokens, width = query.shape[1], query.shape[-1]
    pad = -tokens % CHUNK
    q, k, v = (_chunks(functional.pad(x.float(), (0, 0, 0, 0, 0, pad))) for x in (query, key, value))
    g, b = (_chunks(functional.pad(x.float(), (0, 0, 0, pad)).unsqueeze(-1)) for x in (log_decay, beta))
    q, k = unit(q) * width**-0.5, unit(k)

    total = g.cumsum(-2)  # log-decay from the chunk's start up to each token, that token's included
    gap = total - total.transpose(-1, -2)
    causal = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()
    between = gap.masked_fill(~causal, float("-inf")).exp()
    inverse = inverse_of_unit_lower((b * k) @ k.transpose(-1, -2) * between)
    written = inverse @ (b * v)
    read = inverse @ (b * k * total.exp())
    scores = q @ k.transpose(-1, -2) * between
    q = q * total.exp()
    k = k * (total[..., -1:, :] - total).exp()
    kept = total[..., -1:, :].exp()

    state = q.new_zeros(*q.shape[:2], width, v.shape[-1])
    out = []
    for n in range(q.shape[2]):
        new = written[:, :, n] - read[:, :, n] @ state
        out.append(q[:, :, n] @ state + scores[:, :, n] @ new)
        state = state * kept[:, :, n] + k[:, :, n].transpose(-1, -2) @ new
    whole = torch.stack(out, 2).flatten(2, 3)[:, :, :tokens]
    return whole.transpose(1, 2)


def unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def inverse_of_unit_lower(system: Tensor) -> Tensor:
    """The inverse of ``I + tril(system, -1)`` over the last two axes, whose size is a power of two.

    Blocks of the diagonal are inverted and joined in pairs of doubling size, which is as stable as forward
    substitution and needs only matrix products.
    """
    size = system.shape[-1]
    row = torch.arange(size, device=system.device)
    inverse = torch.eye(size, dtype=system.dtype, device=system.device).expand_as(system)
    width = 1
    while width < size:
        block = row // width
        lower_left = (block[:, None] == block[None, :] + 1) & (block[:, None] % 2 == 1)
        inverse = inverse - inverse @ (system * lower_left) @ inverse
        width *= 2
    return inverse


def _chunks(x: Tensor) -> Tensor:
    """(batch, tokens, heads, width) as (batch, heads, chunks, CHUNK, width)."""
    return x.unflatten(1, (-1, CHUNK)).permute(0, 3, 1, 2, 4)
