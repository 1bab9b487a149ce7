# SPDX-License-Identifier: Apache-2.0
"""The GPU code inside a CUDA library: which architectures it holds, and where each piece of code lies.

A library's ``.nv_fatbin`` section is a row of containers, each a 16-byte header (magic, version, header
size, length) and parts; a part is a header (kind, version, header size, payload size, ..., architecture at
byte 28) and a payload. The layout is not documented by NVIDIA; what is relied on here was checked against
cuobjdump's listing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sglang_fork.binary.elf import Elf

SECTION = ".nv_fatbin"
PTX, MACHINE_CODE = 1, 2

_MAGIC = 0xBA55ED50
_CONTAINER = struct.Struct("<IHHQ")
_PART = struct.Struct("<HHIQ")
_ARCH_AT = 28


@dataclass(frozen=True)
class Part:
    """One piece of GPU code. ``arch``: compute capability times ten (90, 121); ``offset``: in the file."""

    kind: int
    arch: int
    offset: int
    size: int


def parts(elf: Elf) -> Iterator[Part]:
    """Every piece of GPU code of the library, in file order."""
    for section in elf.sections:
        if section.name == SECTION:
            content = elf.section(SECTION)
            assert content is not None
            yield from _parts(content, section.offset)


def architectures(elf: Elf) -> tuple[frozenset[int], frozenset[int]]:
    """The architectures with machine code, and those with PTX alone to compile at load."""
    machine: set[int] = set()
    ptx: set[int] = set()
    for part in parts(elf):
        (machine if part.kind == MACHINE_CODE else ptx).add(part.arch)
    return frozenset(machine), frozenset(ptx)


def prune(path: Path, keep: int) -> tuple[int, int]:
    """Zero the GPU code of every architecture but ``keep`` in place; return the bytes kept and zeroed.

    The file keeps its size and its layout, so nothing that points into it moves; zeros compress to nothing. A
    library without machine code for ``keep`` is left as it is (then its PTX may be all that runs there).
    """
    found = list(parts(Elf(path)))
    if not any(part.kind == MACHINE_CODE and part.arch == keep for part in found):
        return sum(part.size for part in found), 0
    kept = zeroed = 0
    with path.open("r+b") as file:
        for part in found:
            if part.kind == MACHINE_CODE and part.arch == keep:
                kept += part.size
                continue
            file.seek(part.offset)
            file.write(bytes(part.size))
            zeroed += part.size
    return kept, zeroed


def _parts(content: memoryview, base: int) -> Iterator[Part]:
    at = 0
    while at + _CONTAINER.size <= len(content):
        magic, _, header, length = _CONTAINER.unpack_from(content, at)
        if magic != _MAGIC:
            at += 8
            continue
        part, stop = at + header, min(at + header + length, len(content))
        while part + _ARCH_AT + 4 <= stop:
            kind, _, part_header, size = _PART.unpack_from(content, part)
            if part_header == 0:
                break
            (arch,) = struct.unpack_from("<I", content, part + _ARCH_AT)
            yield Part(kind, arch, base + part + part_header, size)
            part += part_header + size
        at = (stop + 7) // 8 * 8
