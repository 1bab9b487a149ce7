# SPDX-License-Identifier: Apache-2.0
"""Which buffers a pool holds, so that parity can put a whole step back where it began."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from sglang.srt.mega.parity import Written

DEPTH = 4  # of pools within pools


def everything(**pools: Any) -> Written:
    """Name -> (buffer, all of it) of every tensor that the pools hold, each once.

    For parity of a whole step of a family whose pools are many; it copies them all, so keep them small.
    """
    seen: set[int] = set()
    found: dict[str, tuple[torch.Tensor, Any]] = {}
    for name, pool in pools.items():
        for path, tensor in _tensors(name, pool, DEPTH, set()):
            if tensor.numel() and tensor.data_ptr() not in seen:
                seen.add(tensor.data_ptr())
                found[path] = (tensor, slice(None) if tensor.ndim else ...)
    return found


def _tensors(path: str, value: Any, depth: int, inside: set[int]) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield path, value
        return
    if depth < 0 or id(value) in inside:
        return
    if isinstance(value, (list, tuple)):
        items: Any = enumerate(value)
    elif isinstance(value, Mapping):
        items = value.items()
    elif dataclasses.is_dataclass(value) or type(value).__module__.startswith("sglang."):
        items = _attributes(value)
    else:
        return
    inside = inside | {id(value)}
    for name, item in items:
        yield from _tensors(f"{path}.{name}", item, depth - 1, inside)


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, torch.nn.Module):
        return
    names = getattr(value, "__struct_fields__", None) or vars(value)
    for name in list(names):
        yield name, getattr(value, name)
