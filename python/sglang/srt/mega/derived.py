# SPDX-License-Identifier: Apache-2.0
"""Memory that a megakernel takes beside the loaded weights, and the KV tokens which it costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def kv_bytes_per_token(kv_heads: int, head_dim: int, layers: int, element_bytes: int = 2) -> int:
    """Bytes of keys and values that one token takes in ``layers`` layers of this rank."""
    return 2 * kv_heads * head_dim * layers * element_bytes


def describe(sizes: Mapping[str, int], per_token: int) -> str:
    """One line: every derived buffer with its size, their sum, and the KV tokens that would fit there."""
    total = sum(sizes.values())
    parts = ", ".join(f"{name} {_size(size)}" for name, size in sizes.items() if size) or "nothing"
    tokens = -(-total // per_token) if per_token else 0
    return f"memory beside the weights: {parts}; in all {_size(total)}, the KV cache of {tokens} tokens"


def nbytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def _size(size: int) -> str:
    return f"{size / 2**20:.1f} MiB" if size >= 2**20 else f"{size / 2**10:.1f} KiB"
