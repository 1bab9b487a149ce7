# SPDX-License-Identifier: Apache-2.0
"""The target's tokens of a verify step on the CPU, for requests that sample.

A draft token is accepted where it equals the token that the target draws at its place. Each committed token
is then one draw from the target's own distribution, whatever the draft was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sglang.srt.layers.sampler import top_k_top_p_min_p_sampling_from_probs_torch

if TYPE_CHECKING:
    from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo


def target_tokens(
    logits: Tensor, sampling: SamplingBatchInfo, width: int, positions: Tensor | None = None
) -> Tensor:
    """One token for each row of ``logits`` [requests * width, vocabulary], by its request's settings.

    A request that does not sample keeps its likeliest token: SGLang gives it a top-k of one. Seeds need
    ``positions``, one a row; without them they are not used.
    """

    def rows(setting: Tensor) -> Tensor:
        return setting.repeat_interleave(width, dim=0)

    return top_k_top_p_min_p_sampling_from_probs_torch(
        (logits.float() / rows(sampling.temperatures)).softmax(-1),
        rows(sampling.top_ks),
        rows(sampling.top_ps),
        rows(sampling.min_ps),
        sampling.need_min_p_sampling,
        None if positions is None or sampling.sampling_seed is None else rows(sampling.sampling_seed),
        positions,
    )


def drawn_logits(logits: Tensor, sampling: SamplingBatchInfo, width: int) -> Tensor:
    """``logits`` [requests * width, vocabulary] replaced by rows whose likeliest token is the drawn one.

    For DSpark, whose greedy acceptance then keeps the drafts that equal the target's draws. As on a GPU, its
    draws take no notice of a request's seed.
    """
    tokens = target_tokens(logits, sampling, width).long()
    return torch.zeros_like(logits).scatter_(1, tokens.view(-1, 1), 1.0)
