# SPDX-License-Identifier: Apache-2.0
"""What a profile holds: everything (``cuda``), or what a machine without a GPU can use (``cpu``).

What the cpu profile leaves out was found by trying: without it the server imports and serves on a CPU,
every CUDA branch of the model files can still be constructed on the meta device, and kernels can still be
compiled and disassembled for every architecture. A package that is left out is installed as bare metadata
with the local version ``+left.out``, so that dependency checks hold and ``pip list`` says what is missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sglang_fork.build.forkwheel import write_wheel
from sglang_fork.build.stub import LeftOut
from sglang_fork.lock.requirements import Pin

LOCAL = "left.out"


@dataclass(frozen=True)
class Package:
    """A package that the cpu profile leaves out, why, and those of its libraries that others link."""

    name: str
    why: str
    libraries: tuple[LeftOut, ...] = ()


CPU_LEAVES_OUT = (
    Package("nvidia-cublas", "GPU matrix products", (
        LeftOut("libcublas.so.13", r"cublas(?!Lt)\w+"),
        LeftOut("libcublasLt.so.13", r"cublasLt\w+"),
    )),
    Package("nvidia-cudnn-cu13", "GPU convolutions", (LeftOut("libcudnn.so.9", r"cudnn\w+"),)),
    Package("nvidia-cudnn-frontend", "interface to cuDNN"),
    Package("nvidia-cufft", "GPU Fourier transforms", (LeftOut("libcufft.so.12", r"cufft\w+"),)),
    Package("nvidia-cufile", "storage to GPU copies", (LeftOut("libcufile.so.0", r"cuFile\w+"),)),
    Package("nvidia-curand", "GPU random numbers", (LeftOut("libcurand.so.10", r"curand\w+"),)),
    Package("nvidia-cusolver", "GPU linear algebra", (LeftOut("libcusolver.so.12", r"cusolver\w+"),)),
    Package("nvidia-cusparse", "GPU sparse products", (LeftOut("libcusparse.so.12", r"cusparse(?!Lt)\w+"),)),
    Package("nvidia-cusparselt-cu13", "GPU sparse products", (
        LeftOut("libcusparseLt.so.0", r"cusparseLt\w+"),
    )),
    Package("nvidia-cutlass-dsl-libs-cu12", "CuTe DSL for CUDA 12; the one for CUDA 13 stays"),
    Package("nvidia-mathdx", "device-side math templates"),
    Package("nvidia-nccl-cu13", "GPU collectives", (LeftOut("libnccl.so.2", r"p?nccl\w+"),)),
    Package("nccl-extensions", "GPU collectives"),
    Package("nccl4py", "GPU collectives"),
    Package("nvidia-nvshmem-cu13", "GPU symmetric memory", (LeftOut("libnvshmem_host.so.3", r"nvshmem\w+"),)),
    Package("nvshmem4py-cu13", "GPU symmetric memory"),
    Package("nvidia-nvtx", "GPU profiler marks"),
    Package("sgl-deep-ep", "expert-parallel communication between GPUs"),
)  # fmt: skip


def left_out(profile: str) -> tuple[Package, ...]:
    """What the profile leaves out."""
    return CPU_LEAVES_OUT if profile == "cpu" else ()


def write_hollow(pin: Pin, why: str, out: Path) -> Path:
    """Write the bare-metadata wheel that stands for a package that is left out, into folder ``out``."""
    name, version = pin.name.replace("-", "_"), f"{pin.version}+{LOCAL}"
    info = f"{name}-{version}.dist-info/"
    summary = f"Left out of this environment, which is for machines without a GPU ({why}); metadata alone"
    files = {
        info
        + "METADATA": f"Metadata-Version: 2.1\nName: {pin.name}\nVersion: {version}\nSummary: {summary}\n",
        info
        + "WHEEL": "Wheel-Version: 1.0\nGenerator: sglang_fork\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    target = out / f"{name}-{version}-py3-none-any.whl"
    return write_wheel(target, {path: text.encode() for path, text in files.items()}, info)
