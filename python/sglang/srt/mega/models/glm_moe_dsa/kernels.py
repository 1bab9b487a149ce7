# SPDX-License-Identifier: Apache-2.0
"""GLM's sparse attention, on CUDA or emulated on the CPU, and its query's norm, on CUDA."""

from __future__ import annotations

import ctypes
import math
from dataclasses import replace

import torch

from sglang.srt.mega.device.kernel import load_kernel
from sglang.srt.mega.models.glm_moe_dsa.tactics import (
    ENTRIES,
    LATENT,
    MAX_ROWS,
    MULTIPROCESSORS,
    ROPE,
    NormShape,
    Shape,
    kernel_spec,
    launch_config,
    norm_launch,
    norm_spec,
    splits,
)


class SparseMla:
    """Decode over chosen cache rows: two launches, whatever the context.

    Loaded (and compiled where the cache of compiled kernels lacks them) at construction, with the splits'
    sums for ``MAX_ROWS`` rows; nothing is allocated in a step.
    """

    def __init__(self, shape: Shape, device: torch.device | str, *, pdl: bool = True) -> None:
        self.shape = shape
        self.device = torch.device(device)
        self._pdl = pdl
        self._kernels = {entry: load_kernel(kernel_spec(entry, shape), self.device) for entry in ENTRIES}
        shares = max(MULTIPROCESSORS, MAX_ROWS)
        self._partial = torch.zeros(shares, shape.heads, LATENT, device=self.device)
        self._stats = torch.zeros(shares, shape.heads, 2, device=self.device)

    def __call__(
        self,
        query: torch.Tensor,
        rotated: torch.Tensor,
        cache: torch.Tensor,
        chosen: torch.Tensor,
        scale: float,
        out: torch.Tensor,
        share: int | None = None,
    ) -> None:
        """``out`` = softmax(scale * query . key) @ value over each row's chosen tokens.

        query: [rows, heads, 512] bf16, absorbed; rotated: [rows, heads, 64] bf16; both may be strided in rows
        and heads. cache: rows of ``shape.row_bytes`` bytes. chosen: [rows, top_k] int32 cache rows, negative
        where none. out: [rows, heads, 512] bf16. ``share`` blocks a row, for measurements.
        """
        rows = self._check(query, rotated, cache, chosen, out)
        share = splits(self.shape, rows) if share is None else share
        if not 1 <= share <= self._partial.shape[0] // rows:
            raise ValueError(f"{share} splits of {rows} rows; there is room for {self._partial.shape[0]}")
        self._launch(
            "mla_decode",
            rows,
            share,
            query,
            ctypes.c_longlong(query.stride(0)),
            ctypes.c_longlong(query.stride(1)),
            rotated,
            ctypes.c_longlong(rotated.stride(0)),
            ctypes.c_longlong(rotated.stride(1)),
            chosen,
            ctypes.c_longlong(chosen.stride(0)),
            cache,
            scale * math.log2(math.e),
            self._partial,
            self._stats,
        )
        self._launch("mla_merge", rows, share, self._partial, self._stats, out, share)

    def _launch(self, entry: str, rows: int, share: int, *arguments: object) -> None:
        config = launch_config(entry, self.shape, rows, share)
        self._kernels[entry].launch(replace(config, pdl=self._pdl), *arguments)

    def _check(
        self,
        query: torch.Tensor,
        rotated: torch.Tensor,
        cache: torch.Tensor,
        chosen: torch.Tensor,
        out: torch.Tensor,
    ) -> int:
        shape, rows = self.shape, query.shape[0]
        if not 1 <= rows <= MAX_ROWS:
            raise ValueError(f"{rows} rows; the sparse MLA kernel serves 1 to {MAX_ROWS}")
        for name, tensor, dtype, size in (
            ("query", query, torch.bfloat16, (rows, shape.heads, LATENT)),
            ("rotated", rotated, torch.bfloat16, (rows, shape.heads, ROPE)),
            ("chosen", chosen, torch.int32, (rows, shape.top_k)),
            ("out", out, torch.bfloat16, (rows, shape.heads, LATENT)),
        ):
            if tensor.dtype != dtype or tuple(tensor.shape) != size or tensor.stride(-1) != 1:
                raise ValueError(
                    f"{name} must be {dtype} {size}, dense in its last axis; is {tensor.dtype} "
                    f"{tuple(tensor.shape)} with strides {tensor.stride()}"
                )
        for name, tensor in (("query", query), ("rotated", rotated)):
            if tensor.stride(0) % 8 or tensor.stride(1) % 8 or tensor.data_ptr() % 16:
                raise ValueError(f"{name} is not aligned to 16 bytes: strides {tensor.stride()}")
        if not out.is_contiguous():
            raise ValueError(f"out must be contiguous, has strides {out.stride()}")
        row_bytes = cache.stride(0) * cache.element_size()
        if row_bytes != shape.row_bytes or cache[0].numel() * cache.element_size() != row_bytes:
            raise ValueError(
                f"cache rows take {row_bytes} bytes, {tuple(cache.shape)} {cache.dtype}; "
                f"the kernel reads rows of {shape.row_bytes}"
            )
        return rows


class QueryNorm:
    """RMSNorm of the compressed query, read where the projection left it: one launch, in the CuTe DSL."""

    def __init__(self, shape: NormShape, device: torch.device | str, *, pdl: bool = True) -> None:
        self.shape = shape
        self.device = torch.device(device)
        self._pdl = pdl
        self._kernel = load_kernel(norm_spec(shape), self.device)
        self._out = torch.zeros(MAX_ROWS, shape.hidden, dtype=torch.bfloat16, device=self.device)

    def __call__(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """x: [rows, hidden] bf16, rows ``shape.stride`` elements apart; weight: [hidden] bf16. Returns [rows,
        hidden] bf16, valid until the next call.
        """
        rows, hidden = x.shape[0], self.shape.hidden
        if not 1 <= rows <= MAX_ROWS:
            raise ValueError(f"{rows} rows; the query norm serves 1 to {MAX_ROWS}")
        for name, tensor, size, strides in (
            ("x", x, (rows, hidden), (self.shape.stride, 1)),
            ("weight", weight, (hidden,), (1,)),
        ):
            wrong = tensor.dtype != torch.bfloat16 or tuple(tensor.shape) != size or tensor.data_ptr() % 16
            apart = any(
                n > 1 and is_ != want for n, is_, want in zip(size, tensor.stride(), strides, strict=True)
            )
            if wrong or apart:
                raise ValueError(
                    f"{name} must be bf16 {size} with strides {strides}, aligned to 16 bytes; is "
                    f"{tensor.dtype} {tuple(tensor.shape)} with strides {tensor.stride()}"
                )
        out = self._out[:rows]
        self._kernel.launch(replace(norm_launch(rows), pdl=self._pdl), x, weight, out)
        return out
