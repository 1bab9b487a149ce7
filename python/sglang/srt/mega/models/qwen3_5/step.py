# SPDX-License-Identifier: Apache-2.0
"""The covered decode step of Qwen3.5: the stages of every layer in order, each a kernel or its stock twin."""

from __future__ import annotations

from typing import Any

import torch

from sglang.srt.mega import step as mega
from sglang.srt.mega.models.qwen3_5 import stages
from sglang.srt.mega.models.qwen3_5.slots import mixer_slot
from sglang.srt.mega.models.qwen3_5.stages import Stream

SGLANG_READS = {"body srt/models/qwen3_5.py::Qwen3_5ForCausalLM.forward"}


def forward(
    model: Any,
    input_ids: torch.Tensor | None,
    positions: torch.Tensor,
    forward_batch: Any,
    input_embeds: torch.Tensor | None,
) -> torch.Tensor:
    """The backbone's forward: ``[rows, hidden]`` normalised hidden states."""
    hidden = model.embed_tokens(input_ids) if input_embeds is None else input_embeds
    # The norms add in place, and an embedding that a caller holds must not change under it.
    stream = Stream(hidden.clone() if input_embeds is not None else hidden)
    for layer in model.layers:
        stream = mixer(layer, stream, positions, forward_batch)
        stream = mega.call("moe", layer, stages.moe, layer, stream, forward_batch)
    return stream.normed(model.norm)[0]


def mixer(layer: Any, stream: Stream, positions: torch.Tensor, forward_batch: Any) -> Stream:
    """The layer's first stage: GatedDeltaNet where it has one, else attention."""
    slot = mixer_slot(layer)
    if slot == "gdn":
        return mega.call(slot, layer, stages.gated_delta_net, layer, stream, forward_batch)
    return mega.call(slot, layer, stages.attention, layer, stream, positions, forward_batch)
