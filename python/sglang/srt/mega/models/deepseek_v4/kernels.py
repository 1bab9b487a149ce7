# SPDX-License-Identifier: Apache-2.0
"""The seam between two sublayers with hyper-connections as fused steps, on CUDA or emulated on the CPU."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from sglang.srt.mega.device.kernel import load_kernel
from sglang.srt.mega.models.deepseek_v4.tactics import (
    BUCKETS,
    MAX_ROWS,
    MIXES,
    STREAMS,
    SUMS,
    Shape,
    bucket_of,
    kernel_spec,
    launch_config,
)


@dataclass(frozen=True)
class Mix:
    """A sublayer's coefficients, fp32. ``pre`` [rows, 4] collapses the streams into the next sublayer's
    input; ``post`` [rows, 4] and ``comb`` [rows, 4 (from), 4 (to)] rebuild them from its output.
    """

    pre: torch.Tensor
    post: torch.Tensor
    comb: torch.Tensor


class HyperConnection:
    """Post, collapse, norm and the next mix in two launches.

    Loaded (and compiled where the cache of compiled kernels lacks them) at construction, with buffers for
    ``max_rows`` rows; nothing is allocated in a step.
    """

    def __init__(
        self, shape: Shape, device: torch.device | str, max_rows: int = MAX_ROWS, *, pdl: bool = True
    ) -> None:
        self.shape, self.max_rows = shape, max_rows
        self.device = torch.device(device)
        self._pdl = pdl
        buckets = {bucket_of(rows) for rows in range(1, max_rows + 1)}
        self._post = {
            bucket: load_kernel(kernel_spec("mhc_post", shape, bucket), self.device) for bucket in buckets
        }
        self._finish = load_kernel(kernel_spec("mhc_finish", shape, BUCKETS[0]), self.device)
        self._collapsed = torch.zeros(max_rows, shape.hidden, dtype=torch.bfloat16, device=self.device)
        self._sums = torch.zeros(max_rows, shape.slices, SUMS, device=self.device)

    def __call__(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        mix: Mix,
        fn: torch.Tensor,
        mix_scale: torch.Tensor,
        base: torch.Tensor,
        norm_weight: torch.Tensor,
        updated: torch.Tensor,
        normed: torch.Tensor,
        next_mix: Mix,
    ) -> None:
        """Writes ``updated`` (the streams), ``normed`` (the next sublayer's input) and ``next_mix``.

        x: [rows, hidden] bf16, the sublayer's output; residual, updated: [rows, 4, hidden] bf16; fn: [24, 4
        hidden], mix_scale: [3], base: [24], fp32, of the next sublayer; norm_weight: [hidden] bf16.
        """
        shape, rows = self.shape, x.shape[0]
        if not 1 <= rows <= self.max_rows:
            raise ValueError(f"{rows} rows; the hyper-connection kernel was loaded for 1 to {self.max_rows}")
        bf16, fp32 = torch.bfloat16, torch.float32
        for name, tensor, dtype, size in (
            ("x", x, bf16, (rows, shape.hidden)),
            ("residual", residual, bf16, (rows, STREAMS, shape.hidden)),
            ("updated", updated, bf16, (rows, STREAMS, shape.hidden)),
            ("normed", normed, bf16, (rows, shape.hidden)),
            ("norm_weight", norm_weight, bf16, (shape.hidden,)),
            ("fn", fn, fp32, (MIXES, STREAMS * shape.hidden)),
            ("mix_scale", mix_scale, fp32, (3,)),
            ("base", base, fp32, (MIXES,)),
            *self._mix_arguments("mix", mix, rows),
            *self._mix_arguments("next_mix", next_mix, rows),
        ):
            if tensor.dtype != dtype or tuple(tensor.shape) != size or not tensor.is_contiguous():
                raise ValueError(
                    f"{name} must be contiguous {dtype} {size}, is {tensor.dtype} {tuple(tensor.shape)} "
                    f"with strides {tensor.stride()}"
                )
            if tensor.device.type != self.device.type or tensor.data_ptr() % 16:
                raise ValueError(f"{name} is on {tensor.device} or not aligned to 16 bytes")
        config = launch_config("mhc_post", shape, rows)
        self._post[bucket_of(rows)].launch(
            replace(config, pdl=self._pdl),
            x,
            residual,
            mix.pre,
            mix.post,
            mix.comb,
            fn,
            updated,
            self._collapsed,
            self._sums,
            rows,
        )
        self._finish.launch(
            replace(launch_config("mhc_finish", shape, rows), pdl=self._pdl),
            self._sums,
            self._collapsed,
            norm_weight,
            mix_scale,
            base,
            normed,
            next_mix.pre,
            next_mix.post,
            next_mix.comb,
        )

    @staticmethod
    def _mix_arguments(
        name: str, mix: Mix, rows: int
    ) -> tuple[tuple[str, torch.Tensor, torch.dtype, tuple[int, ...]], ...]:
        return (
            (f"{name}.pre", mix.pre, torch.float32, (rows, STREAMS)),
            (f"{name}.post", mix.post, torch.float32, (rows, STREAMS)),
            (f"{name}.comb", mix.comb, torch.float32, (rows, STREAMS, STREAMS)),
        )
