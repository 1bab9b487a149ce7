# SPDX-License-Identifier: Apache-2.0
"""Binds the kernels to the layers' loaded weights, read in the layout in which SGLang holds them."""

from __future__ import annotations

from typing import Any

from sglang.srt.mega.step import Kernel


class Binder:
    """The kernels of one loaded backbone."""

    def __init__(self, backbone: Any, max_rows: int) -> None:
        self.backbone, self.max_rows = backbone, max_rows

    def unavailable(self, slot: str) -> str | None:
        """Why ``slot`` has no kernel for these weights, or None."""
        return "no kernel of this slot is in this tree"

    def bind(self, slots: set[str]) -> dict[tuple[str, int], Kernel]:
        """(slot, id of layer) -> kernel, for the wanted slots."""
        return {}
