# SPDX-License-Identifier: Apache-2.0
"""The parts of a 64-bit little-endian ELF file that say what it runs on and what it is linked with.

Layout: System V ABI, ELF-64; symbol versions: the LSB's ``.gnu.version``, ``_r`` and ``_d`` sections.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

MACHINES = {62: "x86_64", 183: "aarch64"}

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_DYNAMIC = struct.Struct("<qQ")
_VERNEED = struct.Struct("<HHIII")
_VERNAUX = struct.Struct("<IHHII")
_NEEDED, _SONAME, _RPATH, _RUNPATH = 1, 14, 15, 29
_SHT_DYNSYM, _SHT_DYNAMIC, _SHT_VERNEED, _SHT_VERSYM = 11, 6, 0x6FFFFFFE, 0x6FFFFFFF


class NotElfError(ValueError):
    """The file is not a 64-bit little-endian ELF file, or is cut off."""


@dataclass(frozen=True)
class Section:
    """One section header: its name, and where its bytes lie in the file."""

    name: str
    kind: int
    offset: int
    size: int
    link: int


@dataclass(frozen=True)
class Symbol:
    """A dynamic symbol. ``library`` and ``version``: the version it asks for, empty for none."""

    name: str
    defined: bool
    library: str = ""
    version: str = ""


class Elf:
    """One file, read on demand."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.stat().st_size < _HEADER.size:
            raise NotElfError(f"{path.name}: too short")
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._data = memoryview(self._map)
        fields = _HEADER.unpack_from(self._data)
        if fields[0][:6] != b"\x7fELF\x02\x01":
            raise NotElfError(f"{path.name}: not a 64-bit little-endian ELF file")
        self._machine: int = fields[2]
        self._sections_at, self._section_count, self._names_index = fields[6], fields[12], fields[13]

    @property
    def machine(self) -> str:
        """``x86_64``, ``aarch64``, or ``machine-N``."""
        return MACHINES.get(self._machine, f"machine-{self._machine}")

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """The section headers, in file order."""
        try:
            size = _SECTION.size
            rows = [
                _SECTION.unpack_from(self._data, self._sections_at + i * size)
                for i in range(self._section_count)
            ]
        except struct.error:
            raise NotElfError(f"{self.path.name}: cut off") from None
        names = rows[self._names_index][4] if rows else 0
        return tuple(Section(self._text(names + r[0]), r[1], r[4], r[5], r[6]) for r in rows)

    def section(self, name: str) -> memoryview | None:
        """The bytes of the first section of this name."""
        found = next((s for s in self.sections if s.name == name), None)
        return None if found is None else self._data[found.offset : found.offset + found.size]

    @cached_property
    def needed(self) -> tuple[str, ...]:
        """The libraries that the loader must find (DT_NEEDED)."""
        return tuple(self._dynamic(_NEEDED))

    @cached_property
    def soname(self) -> str:
        """The library's own name (DT_SONAME), empty where it has none."""
        return next(iter(self._dynamic(_SONAME)), "")

    @cached_property
    def run_paths(self) -> tuple[str, ...]:
        """The folders of DT_RPATH and DT_RUNPATH."""
        return tuple(
            part for tag in (_RPATH, _RUNPATH) for text in self._dynamic(tag) for part in text.split(":")
        )

    def symbols(self) -> Iterator[Symbol]:
        """The dynamic symbols that have a name."""
        table = next((s for s in self.sections if s.kind == _SHT_DYNSYM), None)
        if table is None:
            return
        strings = self.sections[table.link].offset
        wanted = self._version_needs()
        versions = next((s for s in self.sections if s.kind == _SHT_VERSYM), None)
        indices = None
        if versions is not None:
            indices = self._data[versions.offset : versions.offset + versions.size].cast("H")
        raw = self._data[table.offset : table.offset + table.size]
        for i, (name, _, _, section, _, _) in enumerate(_SYMBOL.iter_unpack(raw)):
            if name:
                library, version = (
                    wanted.get(indices[i] & 0x7FFF, ("", "")) if indices is not None else ("", "")
                )
                yield Symbol(self._text(strings + name), section != 0, library, version)

    def wanted_versions(self) -> frozenset[str]:
        """The names of all symbol versions that the file asks for (``GLIBC_2.34``)."""
        return frozenset(version for _, version in self._version_needs().values())

    def _version_needs(self) -> dict[int, tuple[str, str]]:
        """Version index to (library, version), from ``.gnu.version_r``."""
        section = next((s for s in self.sections if s.kind == _SHT_VERNEED), None)
        needs: dict[int, tuple[str, str]] = {}
        if section is None:
            return needs
        strings = self.sections[section.link].offset
        at = section.offset
        while True:
            _, count, file, first, following = _VERNEED.unpack_from(self._data, at)
            aux = at + first
            for _ in range(count):
                _, _, index, name, step = _VERNAUX.unpack_from(self._data, aux)
                needs[index] = (self._text(strings + file), self._text(strings + name))
                aux += step
            if following == 0:
                return needs
            at += following

    def _dynamic(self, tag: int) -> Iterator[str]:
        section = next((s for s in self.sections if s.kind == _SHT_DYNAMIC), None)
        if section is None:
            return
        strings = self.sections[section.link].offset
        raw = self._data[section.offset : section.offset + section.size]
        for key, value in _DYNAMIC.iter_unpack(raw):
            if key == tag:
                yield self._text(strings + value)

    def _text(self, at: int) -> str:
        return self._map[at : self._map.find(b"\0", at)].decode(errors="replace")
