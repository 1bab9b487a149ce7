# SPDX-License-Identifier: Apache-2.0
"""Softmax attention over gathered rows of several caches, with a sink logit a head."""

from __future__ import annotations

import torch
from torch import Tensor

ROWS_AT_ONCE = 32  # 32 rows x 640 keys x 512 channels of FP32 are 40 MiB


def gathered(indices: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Slots to read [rows, keys], 0 where there is none, and which are real: the first ``lengths`` of a row
    that are not negative.
    """
    real = (torch.arange(indices.shape[1]) < lengths.reshape(-1, 1)) & (indices >= 0)
    return indices.long().where(real, 0), real


def attend(q: Tensor, parts: list[tuple[Tensor, Tensor, Tensor]], sink: Tensor, scale: float) -> Tensor:
    """Attention of ``q`` [rows, heads, dim] over gathered keys, which are the values too, in FP32.

    Each part is (cache [slots, dim], indices [rows, keys], lengths [rows]); ``sink`` [heads] is one more
    logit a head without a value. Returns [rows, heads, dim] in FP32.
    """
    out = torch.empty(q.shape, dtype=torch.float32)
    for start in range(0, q.shape[0], ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        keys, real = [], []
        for cache, indices, lengths in parts:
            slots, valid = gathered(indices[rows], lengths[rows])
            keys.append(cache[slots].float().masked_fill(~valid.unsqueeze(-1), 0))
            real.append(valid)
        kv, valid = torch.cat(keys, 1), torch.cat(real, 1)
        logits = torch.einsum("rhd,rkd->rhk", q[rows].float(), kv) * scale
        logits = logits.masked_fill(~valid.unsqueeze(1), -torch.inf)
        extra = sink.float().view(1, -1, 1).expand(logits.shape[0], -1, 1)
        weights = torch.softmax(torch.cat([logits, extra], -1), -1)[..., :-1]
        out[rows] = torch.einsum("rhk,rkd->rhd", weights, kv)
    return out
