# SPDX-License-Identifier: Apache-2.0
"""Scores of compressed positions in decode and verify steps."""

from __future__ import annotations

import torch
from torch import Tensor


def index_logits(q: Tensor, weights: Tensor, slots: Tensor, lengths: Tensor, table: Tensor) -> Tensor:
    """``sum_h weights[h] * relu(q[h] . key)`` [rows, positions] in FP32, -inf beyond a row's length.

    ``q`` [rows, heads, dim], ``weights`` [rows, heads], ``slots`` [rows, positions] into the index keys
    ``table`` (any shape of [slots, dim]), ``lengths`` [rows] how many positions a row sees.
    """
    keys = table.view(-1, q.shape[-1])[slots].float()
    scores = torch.einsum("rhd,rkd->rhk", q.float(), keys).relu()
    logits = (scores * weights.float().unsqueeze(-1)).sum(1)
    return logits.masked_fill(torch.arange(slots.shape[1]) >= lengths.reshape(-1, 1), -torch.inf)
