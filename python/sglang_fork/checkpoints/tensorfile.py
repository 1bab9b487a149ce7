# SPDX-License-Identifier: Apache-2.0
"""Reading and writing safetensors files with the standard library.

Layout: a little-endian u64 header length, a JSON header (name -> dtype, shape, byte range), then the raw
tensors.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from sglang_fork.errors import ForkError

ITEM_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "I32": 4, "I64": 8, "F8_E4M3": 1, "F8_E8M0": 1, "U8": 1}


@dataclass(frozen=True)
class Entry:
    """One tensor as the header states it: ``dtype`` in safetensors' names, byte range relative to the data
    section.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Blob:
    """A named tensor with its raw little-endian bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def __post_init__(self) -> None:
        expected = math.prod(self.shape) * ITEM_BYTES[self.dtype]
        if len(self.data) != expected:
            raise ValueError(f"{self.name}: {len(self.data)} bytes for {self.dtype} {list(self.shape)}")


def write(path: Path, blobs: Iterable[Blob], metadata: dict[str, str] | None = None) -> None:
    """Write ``blobs`` in order to ``path``, through a temporary file that replaces it at the end."""
    items = list(blobs)
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **(metadata or {})}}
    offset = 0
    for blob in items:
        if blob.name in header:
            raise ValueError(f"tensor {blob.name} given twice")
        header[blob.name] = {
            "dtype": blob.dtype,
            "shape": list(blob.shape),
            "data_offsets": [offset, offset + len(blob.data)],
        }
        offset += len(blob.data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            file.write(struct.pack("<Q", len(text)))
            file.write(text)
            for blob in items:
                file.write(blob.data)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def read_header(path: Path) -> list[Entry]:
    """The tensors of ``path`` in file order; a ForkError when it is no safetensors file or is cut short."""
    try:
        with path.open("rb") as file:
            return list(_entries(path, file))
    except OSError as error:
        raise ForkError(
            f"cannot read {path}: {error.strerror}", "make it: ./sglang.sh checkpoint make"
        ) from error


def _entries(path: Path, file: BinaryIO) -> Iterator[Entry]:
    size = path.stat().st_size
    damaged = ForkError(
        f"{path} is not a whole safetensors file", "make it again: ./sglang.sh checkpoint make"
    )
    prefix = file.read(8)
    if len(prefix) < 8:
        raise damaged
    (length,) = struct.unpack("<Q", prefix)
    if length > size - 8:
        raise damaged
    try:
        header = json.loads(file.read(length))
    except ValueError as error:
        raise damaged from error
    header.pop("__metadata__", None)
    for name, fields in header.items():
        begin, end = fields["data_offsets"]
        if 8 + length + end > size:
            raise damaged
        yield Entry(name, fields["dtype"], tuple(fields["shape"]), begin, end)


def read(path: Path) -> Iterator[Blob]:
    """The tensors of ``path`` with their bytes, one at a time, in file order."""
    entries = read_header(path)
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        for entry in entries:
            file.seek(8 + length + entry.begin)
            yield Blob(entry.name, entry.dtype, entry.shape, file.read(entry.end - entry.begin))
