# SPDX-License-Identifier: Apache-2.0
"""The ``torch.ops.sgl_kernel.*_cpu`` operators that SGLang's CPU engine calls, in plain PyTorch.

SGLang expects these operators from a CPU build of ``sgl_kernel``; the wheel on the package index is the
CUDA build and holds none of them. ``register`` defines each operator that the loaded ``sgl_kernel`` lacks,
so that a CPU build, where there is one, always wins.
"""

from .registry import Operator, install, register

__all__ = ["Operator", "install", "register"]
