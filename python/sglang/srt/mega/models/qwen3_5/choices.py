# SPDX-License-Identifier: Apache-2.0
"""Which experts the two arms of slot ``moe`` choose, for parity."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sglang.srt.mega.models.qwen3_5.shape import Shape
from sglang.srt.mega.models.qwen3_5.workspace import Workspace
from sglang.srt.mega.parity import Choices, ParityError

SGLANG_READS = {
    "body srt/layers/moe/topk.py::StandardTopKOutput",
    "sig srt/models/qwen2_moe.py::Qwen2MoeSparseMoeBlock.forward",
}


class ExpertChoices:
    """A ``parity.Chooser``: the kernel's logits lie in the workspace, stock's pass its top-k module."""

    def __init__(self, shape: Shape, space: Workspace) -> None:
        self.shape, self.space = shape, space

    def of_kernel(self, rows: int) -> Choices:
        logits = self.space.logits[:rows, : self.shape.experts].float()
        ids = logits.sort(dim=-1, descending=True, stable=True).indices[:, : self.shape.top_k]
        return Choices(ids, logits)

    @contextmanager
    def of_stock(self, layer: Any) -> Iterator[list[Choices]]:
        seen: list[Choices] = []

        def look(module: Any, arguments: Any, output: Any) -> None:
            if not hasattr(output, "topk_ids"):
                raise ParityError(f"parity cannot see the experts in a {type(output).__name__}")
            seen.append(Choices(output.topk_ids.clone(), output.router_logits.float().clone()))

        handle = layer.mlp.topk.register_forward_hook(look)
        try:
            yield seen
        finally:
            handle.remove()
