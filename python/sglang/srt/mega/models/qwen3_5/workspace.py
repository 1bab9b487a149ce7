# SPDX-License-Identifier: Apache-2.0
"""The buffers that the kernels of a step hand each other; one set serves every layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sglang.srt.mega.models.qwen3_5.shape import HEAD_DIM, Shape
from sglang.srt.mega.models.qwen3_5.tactics import BUCKETS, attention_splits


@dataclass(frozen=True)
class Workspace:
    """All sized for the widest bucket, R rows.

    ``x`` [R, hidden] bf16, the residual stream; ``square_sums`` [R, hidden / 16] fp32, the sums of squares
    of its runs of 16. The gated delta net: ``mixed_qkv`` [R, qkv], ``z`` and ``core`` [R, value heads *
    128], ``ba`` [R, 2 * value heads]. Attention: ``qkv`` [R, channels], ``partial`` and ``stats`` of the
    splits in fp32, ``attention`` [R, heads * 256]. MoE: ``normed`` [R, hidden], ``logits`` [R, experts up
    to a multiple of 16], ``shared_act`` [R, shared_inter], ``shared_scale`` [R] fp32, ``act`` [R, top_k,
    inter].
    """

    x: torch.Tensor
    square_sums: torch.Tensor
    mixed_qkv: torch.Tensor
    z: torch.Tensor
    ba: torch.Tensor
    core: torch.Tensor
    qkv: torch.Tensor
    partial: torch.Tensor
    stats: torch.Tensor
    attention: torch.Tensor
    normed: torch.Tensor
    logits: torch.Tensor
    shared_act: torch.Tensor
    shared_scale: torch.Tensor
    act: torch.Tensor

    @classmethod
    def allocate(cls, shape: Shape, device: torch.device | str) -> Workspace:
        rows = BUCKETS[-1]
        splits = max(bucket * attention_splits(shape, bucket) for bucket in BUCKETS)

        def bf16(*size: int) -> torch.Tensor:
            return torch.zeros(size, dtype=torch.bfloat16, device=device)

        def fp32(*size: int) -> torch.Tensor:
            return torch.zeros(size, dtype=torch.float32, device=device)

        return cls(
            x=bf16(rows, shape.hidden),
            square_sums=fp32(rows, shape.hidden // 16),
            mixed_qkv=bf16(rows, shape.qkv),
            z=bf16(rows, shape.gdn_inner),
            ba=bf16(rows, 2 * shape.value_heads),
            core=bf16(rows, shape.gdn_inner),
            qkv=bf16(rows, shape.attention_channels),
            partial=fp32(splits * shape.heads, HEAD_DIM),
            stats=fp32(splits * shape.heads, 2),
            attention=bf16(rows, shape.attention_inner),
            normed=bf16(rows, shape.hidden),
            logits=bf16(rows, shape.logit_stride),
            shared_act=bf16(rows, shape.shared_inter),
            shared_scale=fp32(rows),
            act=bf16(rows, shape.top_k, shape.inter),
        )

    def nbytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in vars(self).values())
