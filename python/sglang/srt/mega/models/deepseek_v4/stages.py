# SPDX-License-Identifier: Apache-2.0
"""V4.1's seam between two sublayers as one call, and its stock twin.

SGLang runs the seam in pieces: post after a sublayer, combine and norm before the next, and the next mix
beside or after it. Here they are one call with the same results, earlier.
"""

from __future__ import annotations

from typing import Any

import torch

from sglang.srt.mega import step as mega

SGLANG_READS = {
    "body srt/models/deepseek_v4_mhc.py::_post_fusion",
    "sig srt/models/deepseek_v4_mhc.py::post",
    "sig srt/models/deepseek_v4_mhc.py::mix_stats",
    "body srt/models/deepseek_v4_mhc.py::combine",
    "body srt/models/deepseek_v4_mhc.py::_compute_triplet",
}

Triplet = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
# streams [rows, 4, hidden]; the next sublayer's normed input [rows, hidden]; its (pre, post, comb)
Seam = tuple[torch.Tensor, torch.Tensor, Triplet]


def seam(hc: Any, output: torch.Tensor, residual: torch.Tensor, mix: Triplet, following: Any) -> Any:
    """SGLang's ``HcState`` after the seam between ``hc``'s sublayer and the ``following`` one's.

    output: [rows, hidden], the sublayer's; residual: [rows, 4, hidden]; mix: ``hc``'s (pre, post, comb).
    """
    from sglang.srt.models.deepseek_v4_mhc import HcNormed, HcState

    streams, normed, next_mix = mega.call(
        "mhc", following.norm, stock_seam, hc, output, residual, mix, following
    )
    return HcState(streams, mix[0], HcNormed(normed), next_mix)


def stock_seam(hc: Any, output: torch.Tensor, residual: torch.Tensor, mix: Triplet, following: Any) -> Seam:
    """Stock twin of slot ``mhc``: SGLang's own functions in its order."""
    from sglang.srt.models import deepseek_v4_mhc as mhc

    pre, post, comb = mix
    state = mhc.HcState(mhc.post(hc.cfg, output, residual, post, comb), pre)
    return state.residual, mhc.combine(following.hc, state), mhc.mix_stats(following.hc, state.residual)
