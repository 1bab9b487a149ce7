# SPDX-License-Identifier: Apache-2.0
"""Driver, compilers and the CUDA toolkit: what kernels are compiled with at first use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from sglang_fork.doctor.finding import Finding, error, info, ok, warn
from sglang_fork.doctor.machine import Machine
from sglang_fork.launch import ptxas as launch_ptxas

OLDEST_DRIVER_CUDA = (13, 0)


def driver(machine: Machine) -> Iterator[Finding]:
    """The NVIDIA driver and the CUDA release that it serves."""
    if machine.driver is None and not machine.gpus:
        yield info("driver", "no NVIDIA driver: this machine serves on the CPU (build --profile cpu)")
        return
    text = machine.run("nvidia-smi") or ""
    match = re.search(r"Driver Version: *([\d.]+).*CUDA (?:UMD )?Version: *(\d+)\.(\d+)", text)
    if match is None:
        yield error(
            "driver",
            f"{machine.driver or 'the driver'} is there, but nvidia-smi does not answer",
            "every GPU process fails when it starts",
            "reboot if the driver was updated; in a container check its NVIDIA runtime",
        )
        return
    release = int(match[2]), int(match[3])
    what = f"driver {match[1]}, CUDA {release[0]}.{release[1]}, " + ", ".join(
        f"{gpu.name} ({gpu.isa})" for gpu in machine.gpus
    )
    if release < OLDEST_DRIVER_CUDA:
        yield error(
            "driver",
            what,
            "torch is built for CUDA 13.0 and refuses an older driver",
            "install driver 580 or newer",
        )
    else:
        yield ok("driver", what)


def cuda_home(machine: Machine) -> Iterator[Finding]:
    """CUDA_HOME, nvcc, and whether compiler and headers are of one release."""
    home = machine.cuda_home
    if home is None:
        yield warn(
            "CUDA_HOME",
            "no CUDA toolkit",
            "kernels that SGLang, FlashInfer or DeepGEMM compile at first use cannot be built",
            "./sglang.sh build (it carries the toolkit)",
        )
        return
    given = "CUDA_HOME" in machine.environ
    nvcc = home / "bin" / "nvcc"
    release = nvcc_release(machine, nvcc)
    if release is None:
        yield error(
            "CUDA_HOME",
            f"{nvcc} does not run",
            "kernels that are compiled at first use cannot be built",
            "unset CUDA_HOME to use the built environment's own" if given else "./sglang.sh build",
        )
        return
    yield ok("CUDA_HOME", f"{home}{' (set by you)' if given else ''}, nvcc {release[0]}.{release[1]}")
    yield from _headers_agree(machine, home, release)
    wrapper = machine.which("nvcc")
    if wrapper is not None and wrapper.is_file() and _is_script(wrapper) and not given:
        yield info("CUDA_HOME", f"{wrapper} is a script; JIT builds use {home} and not the one on PATH")


def nvcc_release(machine: Machine, nvcc: Path) -> tuple[int, int] | None:
    """The release that nvcc prints."""
    match = re.search(r"release (\d+)\.(\d+)", machine.run(str(nvcc), "--version") or "")
    return (int(match[1]), int(match[2])) if match else None


def headers_release(include: Path) -> tuple[int, int] | None:
    """The CUDA release of a folder of headers (CUDART_VERSION)."""
    try:
        text = (include / "cuda_runtime_api.h").read_text(errors="replace")
    except OSError:
        return None
    match = re.search(r"#define\s+CUDART_VERSION\s+(\d+)", text)
    return (int(match[1]) // 1000, int(match[1]) % 1000 // 10) if match else None


def _headers_agree(machine: Machine, home: Path, release: tuple[int, int]) -> Iterator[Finding]:
    folders = {home / "include"}
    if machine.packages is not None:
        folders |= set(machine.packages.glob("nvidia/cu1*/include"))
    for include in sorted({folder.resolve() for folder in folders}):
        headers = headers_release(include)
        if headers is None:
            yield warn(
                "CUDA headers",
                f"{include} holds no CUDA runtime headers",
                "kernels that are compiled at first use cannot be built",
                "./sglang.sh build",
            )
        elif headers != release:
            yield error(
                "CUDA headers",
                f"nvcc is {release[0]}.{release[1]}, the headers in {include} are {headers[0]}.{headers[1]}",
                'what includes CCCL stops with "CUDA compiler and CUDA toolkit headers are incompatible"',
                "unset CUDA_HOME, so that compiler and headers come from the locked packages",
            )
        else:
            yield ok("CUDA headers", f"{headers[0]}.{headers[1]}, as nvcc; CCCL {cccl_version(include)}")


def cccl_version(include: Path) -> str:
    """The version of the CCCL headers in a toolkit's include folder, ``none`` where there are none."""
    for name in ("cccl/cuda/std/__cccl/version.h", "cuda/std/__cccl/version.h"):
        try:
            text = (include / name).read_text(errors="replace")
        except OSError:
            continue
        match = re.search(r"#define\s+CCCL_VERSION\s+(\d+)", text)
        if match:
            number = int(match[1])
            return f"{number // 1000000}.{number // 1000 % 1000}.{number % 1000}"
    return "none"


def ptxas(machine: Machine) -> Iterator[Finding]:
    """Every ptxas in reach, and whether it knows this machine's GPUs (GB10 needs sm_121a)."""
    places = {"CUDA_HOME": machine.cuda_home / "bin" / "ptxas" if machine.cuda_home else None}
    if machine.packages is not None:
        folder = machine.packages / "triton/backends/nvidia/bin"
        places |= {f"triton {path.name}": path for path in sorted(folder.glob("ptxas*"))}
    for variable in ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"):
        if machine.environ.get(variable):
            places[variable] = Path(machine.environ[variable])
    need = {f"{gpu.isa}a" if gpu.isa >= "sm_90" or len(gpu.isa) > 5 else gpu.isa for gpu in machine.gpus}
    knows_all = False
    for name, path in places.items():
        archs = ptxas_architectures(machine, path) if path is not None and path.exists() else frozenset()
        if archs:
            knows_all |= need <= archs
            yield info("ptxas", f"{name}: {_shown(archs)}")
    if need and not knows_all:
        yield error(
            "ptxas",
            f"no ptxas in reach knows {', '.join(sorted(need))}",
            'Triton and JIT kernels fail with "ptxas fatal: Value is not defined for option gpu-name"',
            "./sglang.sh build, or name a newer one in "
            + " and ".join(sorted({launch_ptxas.triton_tool(gpu.isa)[0] for gpu in machine.gpus})),
        )
    elif need:
        yield ok("ptxas", f"knows {', '.join(sorted(need))}")


def ptxas_architectures(machine: Machine, path: Path) -> frozenset[str]:
    """The architectures that a ptxas accepts, from its help."""
    return frozenset(re.findall(r"'(sm_\d+[af]?)'", machine.run(str(path), "--help") or ""))


def compilers(machine: Machine) -> Iterator[Finding]:
    """g++ and ninja, which JIT builds call."""
    gxx = machine.which("g++")
    text = machine.run(str(gxx), "--version") if gxx else None
    if text is None:
        yield error(
            "g++",
            "no g++ that runs",
            "JIT kernels, the CPU emulator and the cpu profile's stub libraries cannot be built",
            "install g++ (apt-get install g++)",
        )
    else:
        yield ok("g++", text.splitlines()[0])
    inside = machine.venv / "bin" / "ninja" if machine.venv else None
    ninja = inside if inside is not None and inside.exists() else machine.which("ninja")
    version = machine.run(str(ninja), "--version") if ninja else None
    if version is None:
        yield error(
            "ninja", "no ninja that runs", "SGLang's JIT kernels cannot be built", "./sglang.sh build"
        )
    else:
        yield ok("ninja", version.strip())


def _shown(archs: frozenset[str]) -> str:
    newest = sorted(archs, key=lambda a: (int(re.sub(r"\D", "", a)), a))
    return ", ".join(a for a in newest if int(re.sub(r"\D", "", a)) >= 90)


def _is_script(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"#!"
