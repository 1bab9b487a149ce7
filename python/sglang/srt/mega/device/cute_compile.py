# SPDX-License-Identifier: Apache-2.0
"""CuTe DSL kernels to machine code for one architecture. Needs no GPU.

A source is a module ``cute/NAME.py`` beside ``csrc``, whose ``build(arch, **constants)`` returns a cubin with
one kernel. Its symbol begins with the spec's entry; static layouts leave plain pointers as its parameters, so
the launcher starts it like any other.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import tempfile
from functools import cache
from types import ModuleType

from sglang.srt.mega.device.sass import disassembler
from sglang.srt.mega.device.sources import source_root
from sglang.srt.mega.device.spec import KernelSpec

USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+)")
SYMBOL = re.compile(rb"\.text\.([A-Za-z_]\w*)\0")


def is_cute(spec: KernelSpec) -> bool:
    return spec.source.endswith(".py")


def compiler_version() -> str:
    return f"nvidia-cutlass-dsl {importlib.metadata.version('nvidia-cutlass-dsl')}"


def source_text(spec: KernelSpec) -> str:
    return (source_root() / spec.source).read_text(encoding="utf-8")


def build_cubin(spec: KernelSpec, arch: str) -> bytes:
    """The cubin. Raises whatever the DSL raises; its files are left nowhere."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)  # the DSL writes its copies into the working directory
        try:
            return bytes(_module(spec.source).build(arch, **dict(spec.constants)))
        finally:
            os.chdir(before)


def symbol_of(cubin: bytes, entry: str) -> str:
    """The name of the kernel that begins with ``entry``; the cubin must hold no other."""
    names = {name.decode() for name in SYMBOL.findall(cubin)}
    found = [name for name in names if name.startswith(entry)]
    if len(found) != 1:
        raise ValueError(f"a cubin with one kernel {entry}... is wanted, this has {sorted(names)}")
    return found[0]


def usage(cubin: bytes) -> tuple[int, int, int]:
    """(registers a thread, bytes of stack a thread, bytes of static shared memory) of a cubin's kernel."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        tool = disassembler().with_name("cuobjdump")
        text = subprocess.run(
            [tool, "--dump-resource-usage", file.name], check=True, capture_output=True, text=True
        ).stdout
    found = USAGE.search(text)
    if found is None:
        raise ValueError(f"no resource usage in: {text}")
    registers, stack, shared = map(int, found.groups())
    return registers, stack, shared


@cache
def _module(source: str) -> ModuleType:
    path = source_root() / source
    spec = importlib.util.spec_from_file_location(f"mega_cute_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
