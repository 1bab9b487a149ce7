# SPDX-License-Identifier: Apache-2.0
"""NVRTC: a kernel's sources to machine code (a cubin) for one architecture. Needs no GPU."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sglang.srt.mega.device import cute_compile
from sglang.srt.mega.device.cubin_cache import CubinCache, key_of
from sglang.srt.mega.device.sources import closure, cuda_include, kernel_root
from sglang.srt.mega.device.spec import ARCHITECTURES, KernelSpec

USAGE = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")


class CompileError(RuntimeError):
    """NVRTC refused a kernel; the message carries its log."""


@dataclass(frozen=True)
class Usage:
    """What the assembler reports for one entry: registers a thread, bytes of stack and of spills, and bytes
    of static shared memory a block.
    """

    registers: int
    stack_bytes: int
    spill_bytes: int
    shared_bytes: int = 0


@dataclass(frozen=True)
class Compiled:
    """``symbol``: the kernel's name in the machine code."""

    cubin: bytes
    usage: Usage
    symbol: str


def options(spec: KernelSpec, arch: str) -> list[str]:
    """The options that the machine code depends on; of the include folders, the text is hashed instead."""
    if arch not in ARCHITECTURES:
        raise ValueError(f"{arch} is not built for; architectures: {', '.join(ARCHITECTURES)}")
    return [f"--gpu-architecture={arch}", "--std=c++17", "--ptxas-options=-v", *spec.definitions()]


def cache_key(spec: KernelSpec, arch: str) -> str:
    """Changes with any byte of the sources, any option, the architecture and the compiler's version."""
    if cute_compile.is_cute(spec):
        constants = [f"{name}={value!r}" for name, value in spec.constants]
        version, text = cute_compile.compiler_version(), cute_compile.source_text(spec)
        return key_of([version, spec.source, spec.entry, arch, *constants, text])
    texts = [part for name, text in closure(spec.source).items() for part in (name, text)]
    header = (cuda_include() / "cuda_bf16.h").read_text(encoding="utf-8", errors="replace")
    return key_of(
        [compiler_version(), spec.source, spec.entry, *options(spec, arch), key_of([header]), *texts]
    )


def compiler_version(spec: KernelSpec | None = None) -> str:
    """NVRTC's version, or that of the compiler of ``spec``."""
    if spec is not None and cute_compile.is_cute(spec):
        return cute_compile.compiler_version()
    nvrtc = _nvrtc()
    major, minor = _check(nvrtc, nvrtc.nvrtcVersion())
    return f"nvrtc {major}.{minor}"


def compile_kernel(spec: KernelSpec, arch: str) -> Compiled:
    """Compiles; raises CompileError with the compiler's log."""
    if cute_compile.is_cute(spec):
        if arch not in ARCHITECTURES:
            raise ValueError(f"{arch} is not built for; architectures: {', '.join(ARCHITECTURES)}")
        code = cute_compile.build_cubin(spec, arch)
        registers, stack, shared = cute_compile.usage(code)
        usage = Usage(registers, stack, stack, shared)
        return Compiled(code, usage, cute_compile.symbol_of(code, spec.entry))
    nvrtc = _nvrtc()
    text = f'#include "{spec.source}"\n'
    program = _check(nvrtc, nvrtc.nvrtcCreateProgram(text.encode(), spec.entry.encode() + b".cu", 0, [], []))
    try:
        arguments = [*options(spec, arch), f"-I{kernel_root()}", f"-I{cuda_include()}"]
        encoded = [argument.encode() for argument in arguments]
        status = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)[0]
        log = _text(nvrtc, program)
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(f"{spec.label} for {arch} does not compile:\n{log}")
        size = _check(nvrtc, nvrtc.nvrtcGetCUBINSize(program))
        cubin = bytearray(size)
        _check(nvrtc, nvrtc.nvrtcGetCUBIN(program, cubin))
        return Compiled(bytes(cubin), _usage(log, spec, arch), spec.entry)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def load_cubin(spec: KernelSpec, arch: str, cache: CubinCache) -> bytes:
    """The cubin from the cache, compiled and stored first where it is absent."""
    return cache.get_or_make(cache_key(spec, arch), lambda: compile_kernel(spec, arch).cubin)


def _usage(log: str, spec: KernelSpec, arch: str) -> Usage:
    entry = log[log.find(f"'{spec.entry}'") :] if f"'{spec.entry}'" in log else ""
    registers, bytes_used = REGISTERS.search(entry), USAGE.search(entry)
    if registers is None or bytes_used is None:
        raise CompileError(f"{spec.label} for {arch}: the source defines no entry {spec.entry}:\n{log}")
    stack, stores, loads = (int(group) for group in bytes_used.groups())
    shared = SHARED.search(entry)
    return Usage(int(registers.group(1)), stack, stores + loads, int(shared.group(1)) if shared else 0)


def _nvrtc():  # type: ignore[no-untyped-def]
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise CompileError("cuda-python is not installed: ./sglang.sh build installs it") from error
    return nvrtc


def _check(nvrtc, result):  # type: ignore[no-untyped-def]
    status, *values = result
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CompileError(f"NVRTC: {nvrtc.nvrtcGetErrorString(status)[1].decode()}")
    return values[0] if len(values) == 1 else values


def _text(nvrtc, program) -> str:  # type: ignore[no-untyped-def]
    size = _check(nvrtc, nvrtc.nvrtcGetProgramLogSize(program))
    log = bytearray(size)
    _check(nvrtc, nvrtc.nvrtcGetProgramLog(program, log))
    return bytes(log).rstrip(b"\0").decode(errors="replace")
