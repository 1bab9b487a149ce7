# SPDX-License-Identifier: Apache-2.0
"""One way to load a kernel for a GPU or for the CPU emulator; the two share this interface."""

from __future__ import annotations

from typing import Protocol

import torch

from sglang.srt.mega.device.spec import KernelSpec, LaunchConfig


class Kernel(Protocol):
    """A loaded kernel. Arguments of ``launch``: tensors (pointers), ``None`` (a null pointer), ``int`` (32
    bits), ``float`` (fp32) or a ctypes scalar.
    """

    spec: KernelSpec

    def launch(self, config: LaunchConfig, *arguments: object) -> None: ...


def load_kernel(spec: KernelSpec, device: torch.device) -> Kernel:
    """Compiled for this device, from the on-disk cache where it holds it. Never call it within a step.

    CuTe DSL kernels (sources that end in ``.py``) have no emulation: ``ValueError`` on a CPU.
    """
    if device.type == "cuda":
        from sglang.srt.mega.device.cuda import CudaKernel

        return CudaKernel(spec, device)
    if device.type == "cpu":
        if spec.source.endswith(".py"):
            raise ValueError(f"{spec.label}: CuTe DSL kernels have no emulation")
        from sglang.srt.mega.device.emulator import EmulatedKernel

        return EmulatedKernel(spec)
    raise ValueError(f"kernels run on cuda and, emulated, on cpu; not on {device}")
