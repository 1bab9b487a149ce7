# SPDX-License-Identifier: Apache-2.0
"""Users' reports of compute capability 12.x that SGLang 0.5.23 and its pins cured, unpatched."""

from types import SimpleNamespace

import pytest
import torch

from sglang.srt.layers.moe.moe_runner.triton_utils import fused_moe_triton_config as tiles

SHARED_MEMORY = 101376  # opt-in bytes a block on 12.0 and 12.1
EXPERTS = 128


def bytes_of(tile, dtype):
    """Both operands of every stage: no less than what Triton takes."""
    size = 1 if dtype == "fp8_w8a8" else 2
    rows = tile["BLOCK_SIZE_M"] + tile["BLOCK_SIZE_N"]
    return rows * tile["BLOCK_SIZE_K"] * size * tile.get("num_stages", 3)


@pytest.fixture
def small_shared_memory(monkeypatch):
    """As on a device of 12.x, for the tile rules."""
    properties = SimpleNamespace(shared_memory_per_block_optin=SHARED_MEMORY)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    execution = SimpleNamespace(deterministic=SimpleNamespace(enable_deterministic_inference=False))
    monkeypatch.setattr(tiles, "get_exec", lambda: execution)
    tiles._get_cuda_shared_memory_per_block_optin.cache_clear()
    yield
    tiles._get_cuda_shared_memory_per_block_optin.cache_clear()


@pytest.mark.parametrize("rows", [1, 7, 56, 4096])
@pytest.mark.parametrize(
    ("dtype", "block"), [("fp8_w8a8", None), ("fp8_w8a8", [128, 128]), (None, None), ("int8_w8a16", None)]
)
def test_default_moe_tiles_fit_a_gb10(small_shared_memory, rows, dtype, block):
    """Reports 5995 and 8513: 147456 and 163840 bytes were asked of 101376."""
    tile = tiles.get_default_config(rows, EXPERTS, 768, 2048, 8, dtype, False, block)
    assert bytes_of(tile, dtype) <= SHARED_MEMORY


def test_the_default_fp8_tile_of_larger_devices_would_not_fit(small_shared_memory, monkeypatch):
    monkeypatch.setattr(tiles, "_use_low_smem_fp8_default", lambda: False)
    tile = tiles.get_default_config(4096, EXPERTS, 768, 2048, 8, "fp8_w8a8", False, None)
    assert bytes_of(tile, "fp8_w8a8") > SHARED_MEMORY


@pytest.mark.parametrize("heads", [8, 16, 32, 64, 128])
@pytest.mark.parametrize("drafts", [1, 3, 5, 7, 63, 65])
def test_sparse_mla_of_12_x_takes_every_width_of_a_draft(heads, drafts):
    """Reports 33134, 33943 and 33985: window 128 and drafts, padded to 64, gave 192, which had no kernel."""
    from flashinfer.mla._sparse_mla_sm120 import _DECODE_DSV4_DISPATCH

    from sglang.srt.layers.attention.deepseek_v4_backend import _pad_last_dim

    width = _pad_last_dim(torch.zeros(1, 128 + drafts, dtype=torch.int32)).shape[-1]
    assert width in (192, 256) and (heads, width) in _DECODE_DSV4_DISPATCH
