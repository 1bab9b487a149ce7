# SPDX-License-Identifier: Apache-2.0
"""Compiles Marlin's fused-MoE kernels while a slice loads: ``python -m sglang_fork.bench.precompile BIAS
ZEROED [CAPABILITY]``, in a Python that has SGLang.

SGLang compiles one module for each of an expert layer's two products when a step first reaches it, one after
the other; on a cold cache each took 265 s of nvcc on a GPU machine of 16 cores. Two processes compile both at
once, and the step waits for them at SGLang's own build lock. With CAPABILITY, as 9.0, no GPU is needed.
What fails here is said in a line and fails nothing else: the step compiles what is not there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
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


def nvcc() -> Path | None:
    """The compiler that SGLang's JIT would call, looked for as tvm-ffi does, or None."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if not home and (found := shutil.which("nvcc")):
        return Path(found)
    path = Path(home or "/usr/local/cuda") / "bin" / "nvcc"
    return path if path.is_file() else None


@contextmanager
def compiling(words: list[list[str]]) -> Iterator[None]:
    """Compile these modules in processes of their own while the body runs; what is not done then goes on."""
    if words and nvcc() is None:
        print("Marlin's kernels are not compiled ahead: no nvcc in CUDA_HOME, PATH or /usr/local/cuda")
        words = []
    command = [sys.executable, "-P", "-m", "sglang_fork.bench.precompile"]
    running = [subprocess.Popen([*command, *one], stdout=subprocess.DEVNULL) for one in words]
    try:
        yield
    finally:
        for process in running:
            process.poll()


def main(argv: list[str]) -> int:
    if len(argv) not in (2, 3):
        print("usage: python -m sglang_fork.bench.precompile BIAS ZEROED [CAPABILITY]", file=sys.stderr)
        return 2
    bias, zeroed = (word == "True" for word in argv[:2])
    try:
        compile_module(bias, zeroed, argv[2] if argv[2:] else "")
    except Exception as error:
        print(
            f"Marlin's kernel (bias {bias}, zeroed {zeroed}) is not compiled ahead: {reason(error)}",
            file=sys.stderr,
        )
        return 1
    return 0


def reason(error: Exception) -> str:
    """One line: the compiler's own first error where there is one, else the first of the text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = next((line for line in lines if "fatal" in line or "error:" in line or "not found" in line), "")
    return f"{type(error).__name__}: {(told or next(iter(lines), 'no reason given'))[:300]}"


def compile_module(bias: bool, zeroed: bool, capability: str) -> None:
    """Compile one module into SGLang's JIT cache; nothing to do where it is there."""
    import torch

    from sglang.kernels.jit.utils.arch import override_jit_cuda_arch
    from sglang.kernels.ops.moe import moe_wna16_marlin

    major, _, minor = capability.partition(".")
    with override_jit_cuda_arch(int(major), int(minor or 0)) if major else nullcontext():
        # No expert parallelism; ids are sorted and their inactive prefix is counted.
        moe_wna16_marlin._jit_moe_wna16_marlin_module(torch.bfloat16, False, bias, True, zeroed, True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
