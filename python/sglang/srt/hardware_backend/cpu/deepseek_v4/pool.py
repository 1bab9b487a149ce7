# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V4.1's caches with plain rows: window keys, compressed latents, index keys.

Row ``loc`` of a cache is the token slot that SGLang's allocator gave out, whatever the page size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sglang.kernels.ops.attention.dsv4.kv_layout import KVLayout
from sglang.srt.mem_cache.deepseek_v4_memory_pool import (
    DeepSeekV4IndexerPool,
    DeepSeekV4SingleKVPool,
    DeepSeekV4TokenToKVPool,
)

from .norm_rope import norm_rope, rotate_tail

SGLANG_READS = {
    "sig srt/mem_cache/deepseek_v4_memory_pool.py::DeepSeekV4SingleKVPool.create_buffer",
    "sig srt/mem_cache/deepseek_v4_memory_pool.py::DeepSeekV4SingleKVPool.set_key_buffer_fused",
    "body srt/mem_cache/deepseek_v4_memory_pool.py::DeepSeekV4IndexerPool._create_buffer",
    "sig srt/mem_cache/deepseek_v4_memory_pool.py::DeepSeekV4IndexerPool.set_index_fp4",
    "sig srt/mem_cache/deepseek_v4_memory_pool.py::DeepSeekV4IndexerPool.get_index_k_dequant",
    "body srt/mem_cache/deepseek_v4_memory_pool.py::DeepSeekV4TokenToKVPool._make_kv_pool",
    "body srt/mem_cache/deepseek_v4_memory_pool.py::DeepSeekV4TokenToKVPool._make_indexer_pool",
    "body srt/mem_cache/deepseek_v4_memory_pool.py::DeepSeekV4TokenToKVPool.set_swa_key_buffer_radix_fused",
    "sig srt/mem_cache/deepseek_v4_memory_pool.py"
    "::DeepSeekV4TokenToKVPool.set_swa_key_buffer_radix_fused_norm_rope",
}


def store_rows(cache: Tensor, loc: Tensor, rows: Tensor) -> None:
    """``cache[loc] = rows`` [tokens, dim] but for the rows whose ``loc`` is negative."""
    kept = loc >= 0
    cache[loc[kept].long()] = rows[kept].to(cache.dtype)


class CpuKVPool(DeepSeekV4SingleKVPool):
    """One table [tokens, 512] a layer, in the cache's dtype."""

    def get_bytes_per_token(self) -> int:
        return (self.qk_nope_head_dim + self.qk_rope_head_dim) * self.dtype.itemsize

    def create_buffer(self, *, num_pages: int) -> Tensor:
        self.kv_cache_total_dim = self.get_bytes_per_token()
        self.bytes_per_page_padded = self.page_size * self.kv_cache_total_dim
        width = self.page_size * (self.qk_nope_head_dim + self.qk_rope_head_dim)
        return torch.zeros(num_pages, width, dtype=self.dtype, device=self.device)

    def rows(self, layer_id: int) -> Tensor:
        """The table of the pool's ``layer_id``-th layer."""
        return self.kv_buffer[layer_id].view(-1, self.qk_nope_head_dim + self.qk_rope_head_dim)

    def set_key_buffer_fused(
        self, layer_id: int, loc: Tensor, cache_k: Tensor, freqs_cis: Tensor | None = None
    ) -> None:
        if freqs_cis is not None:
            cache_k = rotate_tail(cache_k, freqs_cis)
        store_rows(self.rows(layer_id), loc, cache_k)


class CpuIndexerPool(DeepSeekV4IndexerPool):
    """Index keys as rows [tokens, index_head_dim]; upstream has rounded them to FP4 before."""

    def _create_buffer(self) -> None:
        pages = -(-(self.size + self.global_page_size) // self.page_size)
        self.index_k_with_scale_buffer = [
            torch.zeros(pages, self.page_size * self.index_head_dim, dtype=self.dtype, device=self.device)
            for _ in range(self.layer_num)
        ]

    def rows(self, layer_id: int) -> Tensor:
        return self.index_k_with_scale_buffer[layer_id].view(-1, self.index_head_dim)

    def set_index_fp4(self, layer_id: int, loc: Tensor, cache_k: Tensor) -> None:
        store_rows(self.rows(layer_id), loc, cache_k)

    def get_index_k_dequant(self, layer_id: int, slots: Tensor | None = None) -> Tensor:
        rows = self.rows(layer_id)
        return rows[: self.size] if slots is None else rows[slots.long()]


class CpuTokenToKVPool(DeepSeekV4TokenToKVPool):
    """SGLang's pool of pools, made of the two above. Ratios 4 and 128 (V4) and the request window are not
    served.
    """

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        unserved = set(self.compression_ratios) - {0, 1, 2}
        if unserved or self.request_window is not None:
            raise NotImplementedError(f"the CPU engine does not compress by {sorted(unserved)} (DeepSeek-V4)")

    def _make_kv_pool(
        self,
        *,
        size: int,
        page_size: int,
        dtype: torch.dtype,
        layer_num: int,
        device: str,
        enable_memory_saver: bool,
        global_page_size: int,
        cls: type = DeepSeekV4SingleKVPool,
        kv_layout: KVLayout = KVLayout.V4,
    ) -> CpuKVPool:
        return CpuKVPool(
            size,
            page_size,
            dtype,
            self.qk_nope_head_dim,
            self.qk_rope_head_dim,
            layer_num,
            device,
            enable_memory_saver,
            global_page_size=global_page_size,
            kv_layout=kv_layout,
        )

    def _make_indexer_pool(
        self,
        size: int,
        page_size: int,
        dtype: torch.dtype,
        index_head_dim: int,
        layer_num: int,
        device: str,
        enable_memory_saver: bool,
        force_fp4: bool = False,
        global_page_size: int | None = None,
        index_k_page8: bool = False,
    ) -> CpuIndexerPool:
        return CpuIndexerPool(
            size,
            page_size,
            dtype,
            index_head_dim,
            layer_num,
            device,
            enable_memory_saver,
            use_fp4_indexer=True,
            global_page_size=global_page_size,
        )

    def window_rows(self, layer_id: int) -> Tensor:
        """The window keys of a model layer [tokens, 512]."""
        return self.swa_kv_pool.rows(self._swa_local_layer_id(layer_id))

    def latent_rows(self, layer_id: int) -> Tensor:
        """The compressed latents that a model layer reads [tokens, 512]: its own or its source layer's."""
        _, source, pool = self.layer_mapping[layer_id]
        return pool.rows(source)

    def set_swa_key_buffer_radix_fused(self, layer_id: int, swa_loc: Tensor, cache_k: Tensor) -> None:
        store_rows(self.window_rows(layer_id), swa_loc, cache_k)

    def set_swa_key_buffer_radix_fused_norm_rope(
        self,
        layer_id: int,
        swa_loc: Tensor,
        kv: Tensor,
        kv_weight: Tensor,
        eps: float,
        freqs_cis: Tensor,
        positions: Tensor,
        q: Tensor | None = None,
    ) -> None:
        assert q is None, "only a ROCm kernel rotates the queries here"
        store_rows(self.window_rows(layer_id), swa_loc, norm_rope(kv, kv_weight, eps, freqs_cis, positions))
