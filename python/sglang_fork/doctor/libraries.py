# SPDX-License-Identifier: Apache-2.0
"""The built environment's native libraries and packages, read from disk without importing anything."""

from __future__ import annotations

import re
from collections.abc import Iterator
from email.parser import HeaderParser
from pathlib import Path

from sglang_fork.binary import fatbin
from sglang_fork.binary.elf import Elf, NotElfError
from sglang_fork.build.profile import LOCAL
from sglang_fork.build.stamp import read_stamp
from sglang_fork.doctor.finding import Finding, error, info, ok, warn
from sglang_fork.doctor.machine import Machine
from sglang_fork.lock import FOLDER, RUNTIME
from sglang_fork.lock.requirements import canonical, parse_lock, read_lock

# What a server loads; the rest of the environment's libraries are checked for machine and C library alone.
GPU_LIBRARIES = (
    "torch/lib/libtorch_cuda.so",
    "sgl_kernel/sm90/common_ops.abi3.so",
    "sgl_kernel/sm100/common_ops.abi3.so",
    "sgl_kernel/flash_ops.abi3.so",
    "sgl_kernel/flashmla_ops.abi3.so",
    "flash_mla/cuda.abi3.so",
)
_MINOR_COMPATIBLE = {121: (120, 121), 103: (100, 103), 89: (80, 86, 89), 86: (80, 86)}


# The CUDA release that the lock's packages are built for, and the folders whose libraries every server loads.
CUDA_MAJOR = "13"
LOADED_BY_A_SERVER = ("sgl_kernel/", "torch/lib/", "flashinfer", "tvm_ffi/")


def built(machine: Machine) -> Iterator[Finding]:
    """Whether there is an environment, and which."""
    stamp = read_stamp(machine.profile) if machine.profile else None
    if machine.profile is None or stamp is None:
        yield error("build", "nothing is built", "no preset can start", "./sglang.sh build")
        return
    yield ok("build", f"profile {machine.profile}, sglang {stamp.fork}, Python {stamp.python}")
    if stamp.left_out:
        text = f"left out of this profile: {', '.join(stamp.left_out)}"
        if machine.gpus:
            yield error(
                "build", text, "nothing can run on this machine's GPU", "./sglang.sh build --profile cuda"
            )
        else:
            yield info("build", text)


def pins(machine: Machine) -> Iterator[Finding]:
    """Installed versions against the lock."""
    if machine.packages is None:
        return
    locked: dict[str, set[str]] = {}
    for pin in parse_lock(read_lock(FOLDER / RUNTIME)):
        locked.setdefault(pin.name, set()).add(pin.version)
    have = installed(machine.packages)
    wrong = []
    for name, versions in sorted(locked.items()):
        version = have.get(name, "").removesuffix(f"+{LOCAL}")
        if version and version not in versions:
            wrong.append(f"{name} {version} (locked: {' or '.join(sorted(versions))})")
    if wrong:
        yield warn(
            "pins",
            f"{len(wrong)} packages differ from the lock: {'; '.join(wrong[:6])}",
            "what was tested is not what runs here",
            "./sglang.sh build after ./sglang.sh clean --all",
        )
    else:
        yield ok("pins", f"{len(locked.keys() & have.keys())} locked packages are as locked")


def installed(packages: Path) -> dict[str, str]:
    """Name to version of every distribution in a site-packages folder."""
    found = {}
    for metadata in packages.glob("*.dist-info/METADATA"):
        headers = HeaderParser().parsestr(metadata.read_text(errors="replace").split("\n\n")[0])
        found[canonical(str(headers["Name"]))] = str(headers["Version"])
    return found


def native(machine: Machine) -> Iterator[Finding]:
    """Each native library's machine and C library, and the GPU code of those that a server loads."""
    if machine.packages is None:
        return
    alien, too_new, broken, other_cuda, count = [], [], [], [], 0
    for path in sorted(machine.packages.rglob("*.so")):
        if "stubs" in path.parts:  # the CuTe DSL ships link stubs for other machines
            continue
        try:
            elf = Elf(path)
            count += 1
            if elf.machine != machine.arch:
                alien.append(f"{path.relative_to(machine.packages)} ({elf.machine})")
            elif machine.glibc != (0, 0) and glibc_floor(elf) > machine.glibc:
                too_new.append(
                    f"{path.relative_to(machine.packages)} needs glibc {_dotted(glibc_floor(elf))}"
                )
            other_cuda += [f"{path.relative_to(machine.packages)} asks for {n}" for n in other_major(elf)]
        except NotElfError as problem:
            broken.append(str(problem))
    if broken:
        yield warn(
            "libraries",
            f"unreadable: {_some(broken)}",
            "imports of them fail",
            "./sglang.sh clean --all, build",
        )
    if alien:
        yield warn(
            "libraries",
            f"for another machine: {_some(alien)}",
            "imports of them fail here",
            "./sglang.sh clean --all, then build with a Python of this machine",
        )
    if too_new:
        yield error(
            "libraries",
            f"{_some(too_new)}; this machine has {_dotted(machine.glibc)}",
            "imports fail with 'version GLIBC_x not found'",
            "use a distribution with that C library, or docker/",
        )
    if other_cuda:
        loaded = [text for text in other_cuda if text.startswith(LOADED_BY_A_SERVER)]
        if loaded:
            yield error(
                "libraries",
                f"{_some(loaded)}; the toolkit here is CUDA {CUDA_MAJOR}",
                "its import fails with 'cannot open shared object file', however long the build took",
                f"install the package's build for CUDA {CUDA_MAJOR}, or ./sglang.sh build",
            )
        else:
            yield info("libraries", f"for another CUDA, loaded on request alone: {_some(other_cuda)}")
    if not too_new:
        yield ok("libraries", f"{count} native libraries, C library {_dotted(machine.glibc)}")
    yield from _gpu_code(machine, machine.packages)


def other_major(elf: Elf) -> list[str]:
    """The CUDA libraries of another major release that a library is linked with."""
    found = [
        (name, re.fullmatch(r"lib(cudart|nvrtc|cublas|cublasLt)\.so\.(\d+).*", name)) for name in elf.needed
    ]
    return [name for name, match in found if match and match[2] != CUDA_MAJOR]


def glibc_floor(elf: Elf) -> tuple[int, int]:
    """The newest glibc symbol version that a library asks for."""
    versions = [re.fullmatch(r"GLIBC_(\d+)\.(\d+)", name) for name in elf.wanted_versions()]
    return max(((int(m[1]), int(m[2])) for m in versions if m), default=(0, 0))


def _gpu_code(machine: Machine, packages: Path) -> Iterator[Finding]:
    wanted = {int(gpu.isa.removeprefix("sm_")) for gpu in machine.gpus}
    for name in GPU_LIBRARIES:
        path = packages / name
        if not path.exists():
            continue
        try:
            machine_code, ptx = fatbin.architectures(Elf(path))
        except NotElfError:
            continue  # native() has named it
        text = f"{name}: {', '.join(f'sm_{a}' for a in sorted(machine_code))}"
        lacking = [a for a in wanted if not machine_code & set(_MINOR_COMPATIBLE.get(a, (a,))) and not ptx]
        if lacking and name == "torch/lib/libtorch_cuda.so":
            yield error(
                "GPU code",
                f"{text}; this machine has sm_{lacking[0]}",
                "torch's own kernels fail with 'no kernel image is available'",
                "install a torch that has it, then ./sglang.sh build --skip-torch",
            )
        else:
            yield info("GPU code", text)


def cuda_runtimes(machine: Machine) -> Iterator[Finding]:
    """How many CUDA runtimes could be loaded side by side."""
    if machine.packages is None:
        return
    found: dict[str, list[str]] = {}
    for path in machine.packages.rglob("libcudart*.so*"):
        match = re.search(r"libcudart[^.]*\.so\.(\d+)", path.name)
        if match:
            found.setdefault(match[1], []).append(str(path.relative_to(machine.packages)))
    text = ", ".join(f"{major} ({paths[0]})" for major, paths in sorted(found.items())) or "none"
    if len(found) > 1:
        yield warn(
            "libcudart",
            f"majors {text}",
            "two runtimes in one process see different devices, streams and errors",
            "remove the package that brings the other major; the lock has one",
        )
    else:
        yield ok("libcudart", f"major {text}")


def _some(items: list[str]) -> str:
    rest = f" and {len(items) - 4} more" if len(items) > 4 else ""
    return ", ".join(items[:4]) + rest


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
