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
    container: int
    """Where the part's container lies: the code of one translation unit for several architectures."""


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


def fits(code: int, arch: int) -> bool:
    """Whether machine code of ``code`` runs on a GPU of ``arch``: same major, and not a later minor."""
    return code // 10 == arch // 10 and code <= arch


def prune(path: Path, arch: int) -> tuple[int, int]:
    """Zero the GPU code that a GPU of ``arch`` never loads, in place; return the bytes kept and zeroed.

    Decided container by container, as the loader does: where one holds machine code that fits, all its
    other code goes; where it holds none, PTX of the same or an earlier architecture is what would be
    compiled at load, so that stays. The file keeps its size and layout, so nothing that points into it
    moves; zeros compress to nothing.
    """
    groups: dict[int, list[Part]] = {}
    for part in parts(Elf(path)):
        groups.setdefault(part.container, []).append(part)
    kept = zeroed = 0
    with path.open("r+b") as file:
        for group in groups.values():
            native = [part for part in group if part.kind == MACHINE_CODE and fits(part.arch, arch)]
            keep = native or [part for part in group if part.kind == PTX and part.arch <= arch]
            for part in group:
                if part in keep:
                    kept += part.size
                else:
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
            yield Part(kind, arch, base + part + part_header, size, base + at)
            part += part_header + size
        at = (stop + 7) // 8 * 8
