# SPDX-License-Identifier: Apache-2.0
"""The CUDA_HOME made of links: its shape on invented packages, and nvcc and the linker on the real one."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from sglang_fork import env
from sglang_fork.binary.elf import Elf
from sglang_fork.build.cudahome import make_cuda_home, site_packages


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """An environment with a CUDA 13 toolkit of empty files."""
    toolkit = tmp_path / "venv/lib/python3.12/site-packages/nvidia/cu13"
    for name in (
        "bin/nvcc",
        "include/cuda.h",
        "nvvm/bin/cicc",
        "lib/libcudart.so.13",
        "lib/libnvrtc.so.13",
        "lib/libnvrtc-builtins.so.13.0",
        "lib/libcudadevrt.a",
    ):
        (toolkit / name).parent.mkdir(parents=True, exist_ok=True)
        (toolkit / name).write_text(name)
    return tmp_path / "venv"


def test_the_shape_that_compilers_expect(venv: Path, tmp_path: Path) -> None:
    driver = tmp_path / "libcuda.so.1"
    driver.write_text("stub")
    home = make_cuda_home(venv, driver)
    assert home == venv / "cuda-home"
    for name, content in {
        "bin/nvcc": "bin/nvcc",
        "include/cuda.h": "include/cuda.h",
        "nvvm/bin/cicc": "nvvm/bin/cicc",
        "lib64/libcudart.so": "lib/libcudart.so.13",
        "lib64/libcudart.so.13": "lib/libcudart.so.13",
        "lib64/libnvrtc-builtins.so": "lib/libnvrtc-builtins.so.13.0",
        "lib/libcudadevrt.a": "lib/libcudadevrt.a",
        "lib64/stubs/libcuda.so": "stub",
    }.items():
        assert (home / name).read_text() == content


def test_made_anew_each_time(venv: Path, tmp_path: Path) -> None:
    home = make_cuda_home(venv, tmp_path / "libcuda.so.1")
    assert home is not None
    (home / "lib64/stale.so").touch()
    make_cuda_home(venv, None)
    assert not (home / "lib64/stale.so").exists() and not any((home / "lib64/stubs").iterdir())


@pytest.mark.parametrize("missing", ["bin", ""])
def test_none_without_a_compiler(venv: Path, missing: str) -> None:
    (venv / "cuda-home").mkdir()
    shutil.rmtree(site_packages(venv) / "nvidia/cu13" / missing)
    assert make_cuda_home(venv, None) is None
    assert not (venv / "cuda-home").exists(), "one of an earlier build would be wrong now"


SOURCE = """
#include <cuda.h>
#include <cuda_runtime.h>
#include <cuda/std/array>
__global__ void twice(float* x) { cuda::std::array<float, 1> y{x[threadIdx.x]}; x[threadIdx.x] = 2 * y[0]; }
extern "C" int start(float* x) { twice<<<1, 32>>>(x); return cuInit(0) + (int)cudaGetLastError(); }
"""


def test_the_built_one_compiles_and_links(tmp_path: Path) -> None:
    """As a JIT build does: nvcc, CCCL's headers, the runtime and the driver's stub."""
    profile = env.built_profile()
    assert profile is not None
    home = env.venv_dir(profile) / "cuda-home"
    (tmp_path / "k.cu").write_text(SOURCE)
    command = [str(home / "bin/nvcc"), "-arch=sm_90a", "-std=c++17", "-shared", "-Xcompiler", "-fPIC"]
    command += ["-cudart", "shared", f"-L{home / 'lib64'}", f"-L{home / 'lib64/stubs'}"]
    out = tmp_path / "libk.so"
    variables = os.environ | env.process_env(profile) | {"CUDA_HOME": str(home)}
    done = subprocess.run(
        [*command, "-o", str(out), str(tmp_path / "k.cu"), "-lcuda"],
        capture_output=True,
        text=True,
        env=variables,
    )
    assert done.returncode == 0, done.stderr
    assert {"libcudart.so.13", "libcuda.so.1"} <= set(Elf(out).needed), "both are loaded with it"
