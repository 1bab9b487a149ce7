# SPDX-License-Identifier: Apache-2.0
"""g++: the emulator's runtime and each kernel as shared libraries, cached on disk. Needs no GPU, no CUDA."""

from __future__ import annotations

import fcntl
import os
import platform
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from sglang.srt.mega.device.cubin_cache import default_folder, key_of
from sglang.srt.mega.device.sources import closure, kernel_root, source_root
from sglang.srt.mega.device.spec import KernelSpec

# No contraction: the emulator cannot know nvcc's choices, so only a kernel's own fmaf is fused.
FLAGS = (
    "-std=c++20",
    "-O2",
    "-march=native",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fPIC",
    "-shared",
)
KERNEL_FLAGS = ("-w", "-fno-gnu-unique")
RUNTIME_FLAGS = ("-Wall", "-Wextra")


class EmulatorBuildError(RuntimeError):
    """g++ is missing or refused a source; the message carries its output."""


def emulator_root() -> Path:
    """The folder of the emulator's own sources."""
    return source_root() / "emulator"


def runtime_library() -> Path:
    """The emulator's runtime, compiled when it is not in the cache."""
    sources = sorted(emulator_root().glob("*.cpp"))
    headers = sorted(emulator_root().glob("*.h"))
    texts = [part for path in [*sources, *headers] for part in (path.name, path.read_text(encoding="utf-8"))]
    command = [compiler(), *FLAGS, *RUNTIME_FLAGS, *map(str, sources)]
    return _cached(key_of([machine_key(), *FLAGS, *RUNTIME_FLAGS, *texts]), "runtime", command)


def kernel_library(spec: KernelSpec) -> Path:
    """The kernel as a library with ``emulator_enter`` and ``emulator_signature``."""
    definitions = spec.definitions()
    headers = sorted(emulator_root().glob("*.h"))
    texts = [part for path in headers for part in (path.name, path.read_text(encoding="utf-8"))]
    texts += [part for name, text in closure(spec.source).items() for part in (name, text)]
    unit = (
        f'#include "{spec.source}"\n#include "emulator/entry.h"\n'
        f"using namespace mega;\nEMULATOR_ENTRY({spec.entry})\n"
    )
    key = key_of([machine_key(), spec.source, spec.entry, *FLAGS, *KERNEL_FLAGS, *definitions, unit, *texts])
    command = [compiler(), *FLAGS, *KERNEL_FLAGS, *definitions, f"-I{kernel_root()}", f"-I{source_root()}"]
    return _cached(key, spec.entry, command, unit)


@cache
def compiler() -> str:
    """g++, or the compiler that ``CXX`` names."""
    name = os.environ.get("CXX", "g++")
    path = shutil.which(name)
    if path is None:
        raise EmulatorBuildError(
            f"the kernel emulator compiles kernels with {name}, which is not installed: install g++"
        )
    return path


@cache
def machine_key() -> str:
    """The compiler and the instruction set that ``-march=native`` stands for."""
    version = subprocess.run([compiler(), "--version"], capture_output=True, text=True, check=True).stdout
    target = subprocess.run(
        [compiler(), "-march=native", "-Q", "--help=target"], capture_output=True, text=True, check=True
    ).stdout
    return key_of([version, platform.machine(), re.sub(r"\s+", " ", target)])


def _cached(key: str, name: str, command: list[str], unit: str | None = None) -> Path:
    folder = default_folder() / "emulator"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    library = folder / f"{name}-{key}.so"
    if library.exists():
        return library
    with (folder / f"{name}-{key}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            _compile(command, unit, library)
    return library


def _compile(command: list[str], unit: str | None, library: Path) -> None:
    with tempfile.TemporaryDirectory(dir=library.parent, prefix=".building-") as scratch:
        output = Path(scratch) / "library.so"
        sources: list[str] = []
        if unit is not None:
            source = Path(scratch) / "kernel.cpp"
            source.write_text(unit, encoding="utf-8")
            sources = [str(source)]
        result = subprocess.run(
            [*command, *sources, "-o", str(output)], capture_output=True, text=True, check=False
        )
        if result.returncode != 0:
            raise EmulatorBuildError(
                f"{library.name} does not compile for the emulator:\n{result.stderr[-8000:]}"
            )
        os.replace(output, library)
