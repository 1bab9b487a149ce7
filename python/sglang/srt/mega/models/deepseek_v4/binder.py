# SPDX-License-Identifier: Apache-2.0
"""Binds the hyper-connection kernels to a loaded DeepSeek-V4.1."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from sglang.srt.mega.models.deepseek_v4.kernels import HyperConnection, Mix
from sglang.srt.mega.models.deepseek_v4.slots import MAX_ROWS
from sglang.srt.mega.models.deepseek_v4.stages import Seam, Triplet
from sglang.srt.mega.models.deepseek_v4.tactics import MIXES, STREAMS, Shape, slice_of
from sglang.srt.mega.step import Kernel
from sglang.srt.mega.view import StepView

SGLANG_READS = {
    "body srt/models/deepseek_v4_mhc.py::HcConfig",
    "body srt/models/deepseek_v4_mhc.py::HcSubLayer",
    "sig srt/layers/layernorm.py::RMSNorm.__init__",
}


def sublayers(layers: Any) -> Iterator[tuple[int, Any]]:
    """(which of two buffers its seam writes, hyper-connection) of every sublayer that a seam can lead to."""
    for layer in layers:
        yield 1, layer.attn_hc
        yield 0, layer.ffn_hc


def shape_of(layers: Any) -> Shape:
    """Raises ``ValueError`` for sizes that no kernel is built for."""
    hc = layers[0].attn_hc
    return Shape(
        hidden=hc.cfg.hidden,
        slice=slice_of(hc.cfg.hidden),
        iterations=hc.cfg.sinkhorn_iters,
        rms_epsilon=float(hc.cfg.rms_eps),
        epsilon=float(hc.cfg.eps),
        norm_epsilon=float(hc.norm.variance_epsilon),
    )


def refusal(layers: Any) -> str | None:
    """Why these layers' seams have no kernel, or None."""
    if any(layer.attn_hc is None or layer.ffn_hc is None for layer in layers):
        return "a layer has no hyper-connections that hand their mix on"
    try:
        shape = shape_of(layers)
    except ValueError as error:
        return str(error)
    for place, (_, hc) in enumerate(sublayers(layers)):
        norm = hc.norm
        if hc.cfg.mult != STREAMS or not hc.cfg.pre_from_prev:
            return f"sublayer {place}: {hc.cfg.mult} streams, mix handed on {hc.cfg.pre_from_prev}"
        if norm.cast_x_before_out_mul or norm.variance_size_override is not None:
            return f"sublayer {place}: a norm of another form"
        if norm.weight.dtype != torch.bfloat16 or norm.variance_epsilon != shape.norm_epsilon:
            return f"sublayer {place}: norm in {norm.weight.dtype}, epsilon {norm.variance_epsilon}"
        if hc.fn.dtype != torch.float32 or tuple(hc.fn.shape) != (MIXES, STREAMS * shape.hidden):
            return f"sublayer {place}: projection {hc.fn.dtype} {tuple(hc.fn.shape)}"
    return None


def bind_mhc(layers: Any, device: torch.device) -> dict[tuple[str, int], Kernel]:
    """(slot, id of the norm that the seam leads to) -> kernel.

    Two sets of buffers alternate: a seam reads the one and writes the other.
    """
    shape = shape_of(layers)
    kernel = HyperConnection(shape, device, MAX_ROWS)
    sets = [_Buffers(shape, device) for _ in range(2)]
    return {("mhc", id(hc.norm)): _bind(kernel, hc, sets[place]) for place, hc in sublayers(layers)}


class _Buffers:
    def __init__(self, shape: Shape, device: torch.device) -> None:
        def empty(*size: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(MAX_ROWS, *size, dtype=dtype, device=device)

        self.streams = empty(STREAMS, shape.hidden, dtype=torch.bfloat16)
        self.normed = empty(shape.hidden, dtype=torch.bfloat16)
        self.mix = [
            empty(*size, dtype=torch.float32) for size in ((STREAMS,), (STREAMS,), (STREAMS, STREAMS))
        ]


def _bind(kernel: HyperConnection, target: Any, space: _Buffers) -> Kernel:
    scale, base = target.scale.detach().float(), target.base.detach().float()

    def seam(
        view: StepView, hc: Any, output: torch.Tensor, residual: torch.Tensor, mix: Triplet, following: Any
    ) -> Seam:
        rows = output.shape[0]
        streams, normed = space.streams[:rows], space.normed[:rows]
        after = tuple(value[:rows] for value in space.mix)
        kernel(
            output,
            residual,
            Mix(*mix),
            target.fn,
            scale,
            base,
            target.norm.weight,
            streams,
            normed,
            Mix(*after),
        )
        return streams, normed, after

    return seam
