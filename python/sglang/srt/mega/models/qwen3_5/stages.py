# SPDX-License-Identifier: Apache-2.0
"""The residual stream between stages, and each stage's stock twin.

A layer is two stages: a mixer (GatedDeltaNet or attention) and the MoE. Each reads the stream, normalises it,
and adds to it. The twins call SGLang's own modules in SGLang's order, so that a step of twins is bit for bit
SGLang's forward on one rank, where a stage boundary exchanges nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

SGLANG_READS = {
    "body srt/models/qwen3_5.py::Qwen3_5LinearDecoderLayer.forward",
    "body srt/models/qwen3_5.py::Qwen3_5AttentionDecoderLayer.forward",
    "sig srt/models/qwen3_5.py::Qwen3_5AttentionDecoderLayer.self_attention",
    "sig srt/models/qwen2_moe.py::Qwen2MoeSparseMoeBlock.forward",
    "sig srt/layers/layernorm.py::GemmaRMSNorm.forward_native",
}


@dataclass(frozen=True)
class Stream:
    """The residual stream, ``[rows, hidden]`` bf16, in one of two forms.

    With ``delta``: the stream is ``residual + delta``, not added yet, because SGLang adds and normalises in
    one op. Without: ``residual`` is the stream, and ``squares`` may hold the fp32 sums of squares of each 16
    columns, ``[rows, hidden / 16]``, which the kernels keep up.
    """

    residual: torch.Tensor
    delta: torch.Tensor | None = None
    squares: torch.Tensor | None = None

    def parity_tensors(self) -> dict[str, torch.Tensor]:
        """The stream itself, whichever form it has."""
        return {"stream": self.residual if self.delta is None else self.residual + self.delta}

    def normed(self, norm: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """(normalised stream, stream) by SGLang's norm module, which may work in place."""
        if self.delta is None:
            return norm(self.residual), self.residual
        return norm(self.delta, self.residual)


def gated_delta_net(layer: Any, stream: Stream, forward_batch: Any) -> Stream:
    """Stock twin of slot ``gdn``."""
    normed, residual = stream.normed(layer.input_layernorm)
    return Stream(residual, layer.linear_attn(normed, forward_batch))


def attention(layer: Any, stream: Stream, positions: torch.Tensor, forward_batch: Any) -> Stream:
    """Stock twin of slot ``attention``."""
    normed, residual = stream.normed(layer.input_layernorm)
    return Stream(residual, layer.self_attention(positions, normed, forward_batch))


def moe(layer: Any, stream: Stream, forward_batch: Any) -> Stream:
    """Stock twin of slot ``moe``."""
    normed, residual = stream.normed(layer.post_attention_layernorm)
    return Stream(residual, layer.mlp(normed, forward_batch))
