# SPDX-License-Identifier: Apache-2.0
"""Compiles Marlin's fused-MoE kernels while a slice loads: ``python -m sglang_fork.bench.precompile BIAS
ZEROED [CAPABILITY]``, in a Python that has SGLang.

SGLang compiles one module for each of an expert layer's two products when a step first reaches it, one after
the other; on a cold cache each took 265 s of nvcc on a GPU machine of 16 cores. Two processes compile both at
once, and the step waits for them at SGLang's own build lock. With CAPABILITY, as 9.0, no GPU is needed.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

SGLANG_READS = {
    "sig kernels/ops/moe/moe_wna16_marlin.py::_jit_moe_wna16_marlin_module",
    "body srt/layers/moe/fused_moe_triton/fused_marlin_moe.py::fused_marlin_moe",
    "sig kernels/jit/utils/arch.py::override_jit_cuda_arch",
}
MARLIN = {"nvfp4", "nvfp4-fp8", "mxfp4"}


def modules(family: str, weights: str, server_args: Mapping[str, Any]) -> list[list[str]]:
    """The (BIAS, ZEROED) words of the modules that a slice's expert layers compile on Hopper, where four-bit
    experts run by Marlin; none for other experts."""
    asked = str(server_args.get("moe_runner_backend", "marlin"))
    if weights not in MARLIN or asked not in ("marlin", "auto"):
        return []
    # SGLang's MXFP4 layers have biases for every model but DeepSeek, whose method is another.
    bias = weights == "mxfp4" and family != "deepseek_v41"
    return [[str(bias), zeroed] for zeroed in ("False", "True")]


@contextmanager
def compiling(words: list[list[str]]) -> Iterator[None]:
    """Compile these modules in processes of their own while the body runs; what is not done then goes on."""
    command = [sys.executable, "-P", "-m", "sglang_fork.bench.precompile"]
    running = [subprocess.Popen([*command, *one], stdout=subprocess.DEVNULL) for one in words]
    yield
    for process in running:
        process.poll()


def main(argv: list[str]) -> int:
    if len(argv) not in (2, 3):
        print("usage: python -m sglang_fork.bench.precompile BIAS ZEROED [CAPABILITY]", file=sys.stderr)
        return 2
    import torch

    from sglang.kernels.jit.utils.arch import override_jit_cuda_arch
    from sglang.kernels.ops.moe import moe_wna16_marlin

    bias, zeroed = (word == "True" for word in argv[:2])
    major, _, minor = argv[2].partition(".") if argv[2:] else ("", "", "")
    with override_jit_cuda_arch(int(major), int(minor)) if major else nullcontext():
        # No expert parallelism; ids are sorted and their inactive prefix is counted.
        moe_wna16_marlin._jit_moe_wna16_marlin_module(torch.bfloat16, False, bias, True, zeroed, True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
