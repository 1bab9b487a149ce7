# SPDX-License-Identifier: Apache-2.0
"""The manifold-constrained hyper-connection (mHC): its gates from their projection, and the read of the
streams.
"""

from __future__ import annotations

import torch
from torch import Tensor


def split_sinkhorn(
    mixes: Tensor, scale: Tensor, base: Tensor, streams: int, iterations: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Read gates [..., streams], write gates [..., streams] and mixing matrix [..., streams, streams].

    ``mixes`` [..., (2 + streams) * streams] holds the three raw parts in this order, ``scale`` one factor
    for each, ``base`` one offset an element. Sinkhorn's iterations make the matrix nearly doubly stochastic;
    the first starts from the rows' softmax, and every one ends with the columns.
    """
    parts = [streams, streams, streams * streams]
    read, write, matrix = (
        x * factor + offset
        for x, factor, offset in zip(
            mixes.float().split(parts, dim=-1), scale.float(), base.float().split(parts), strict=True
        )
    )
    matrix = matrix.unflatten(-1, (streams, streams)).softmax(-1) + eps
    matrix = matrix / (matrix.sum(-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        matrix = matrix / (matrix.sum(-1, keepdim=True) + eps)
        matrix = matrix / (matrix.sum(-2, keepdim=True) + eps)
    result = torch.sigmoid(read) + eps, 2 * torch.sigmoid(write), matrix
    return result[0].to(mixes.dtype), result[1].to(mixes.dtype), result[2].to(mixes.dtype)


def combine(x: Tensor, read: Tensor, streams: int, dtype: torch.dtype) -> Tensor:
    """``sum_k read[:, k] * stream k`` of ``x`` [rows, streams * hidden]; [rows, hidden] in ``dtype``."""
    return (read.float().unsqueeze(-1) * x.float().unflatten(-1, (streams, -1))).sum(1).to(dtype)
