# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V4.1's attention backend: SGLang's metadata, and a gathered softmax in FlashMLA's place."""

from __future__ import annotations

import torch
from torch import Tensor

from sglang.srt.layers.attention.deepseek_v4_backend import DeepseekV4AttnBackend

from .attend import attend
from .pool import CpuTokenToKVPool

SGLANG_READS = {
    "body srt/layers/attention/deepseek_v4_backend.py::DeepseekV4AttnBackend._forward_attention",
    "body srt/layers/attention/deepseek_v4_backend.py::DeepseekV4AttnBackend.store_cache",
    "body srt/layers/attention/deepseek_v4_backend.py::DeepseekV4AttnBackend._move_to_device",
}


class CpuDeepseekV4AttnBackend(DeepseekV4AttnBackend):
    token_to_kv_pool: CpuTokenToKVPool

    def _use_sparse_prefill(self, *_, **__) -> bool:
        return False  # its workspace of gathered keys is FlashMLA's

    def _move_to_device(self, x: list[int]) -> Tensor:
        return torch.tensor(x, dtype=torch.int32)

    def _forward_attention(
        self, q, k, v, layer, forward_batch, compress_ratio, save_kv_cache=True, attn_sink=None, **_
    ) -> Tensor:
        if self.mtp_enabled and forward_batch.forward_mode.is_idle():
            return q.new_empty(q.shape)
        metadata, pool = self.forward_metadata.core_attn_metadata, self.token_to_kv_pool
        if save_kv_cache:
            self.store_cache(layer.layer_id, k, forward_batch)
        parts = [(pool.window_rows(layer.layer_id), metadata.swa_page_indices, metadata.swa_topk_lengths)]
        if compress_ratio:
            parts.append(
                (
                    pool.latent_rows(layer.layer_id),
                    metadata.sparse_page_indices(compress_ratio),
                    metadata.sparse_topk_lengths(compress_ratio),
                )
            )
        # Rows and heads beyond these are padding: of a batch, and of the draft's queries to FlashMLA's 64.
        rows, heads = min(q.shape[0], metadata.swa_page_indices.shape[0]), layer.tp_q_head_num
        out = torch.zeros_like(q)
        out[:rows, :heads] = attend(q[:rows, :heads], parts, attn_sink[:heads], self.softmax_scale).to(
            q.dtype
        )
        return out
