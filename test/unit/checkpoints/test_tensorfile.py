# SPDX-License-Identifier: Apache-2.0
"""safetensors files: what is written is read back; a damaged file is refused with the way out."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_fork.checkpoints.tensorfile import Blob, Entry, read, read_header, write
from sglang_fork.errors import ForkError

BLOBS = [
    Blob("a", "BF16", (2, 3), bytes(range(12))),
    Blob("b.scale", "F32", (), bytes(4)),
    Blob("c", "U8", (5,), b"12345"),
]


def test_round_trip(tmp_path: Path) -> None:
    write(tmp_path / "x", BLOBS, {"note": "n"})
    assert list(read(tmp_path / "x")) == BLOBS
    assert read_header(tmp_path / "x")[1] == Entry("b.scale", "F32", (), 12, 16)
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_data_starts_on_eight_bytes(tmp_path: Path) -> None:
    write(tmp_path / "x", BLOBS)
    assert int.from_bytes((tmp_path / "x").read_bytes()[:8], "little") % 8 == 0


@pytest.mark.parametrize(
    "kept", [0, 7, 40, -1], ids=["empty", "no length", "half a header", "last byte lost"]
)
def test_cut_short(tmp_path: Path, kept: int) -> None:
    write(tmp_path / "x", BLOBS)
    (tmp_path / "x").write_bytes((tmp_path / "x").read_bytes()[:kept])
    with pytest.raises(ForkError, match="not a whole safetensors file"):
        read_header(tmp_path / "x")


def test_absent(tmp_path: Path) -> None:
    with pytest.raises(ForkError, match=r"cannot read .*nothing"):
        read_header(tmp_path / "nothing")


def test_wrong_size_or_repeated_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="3 bytes for BF16"):
        Blob("a", "BF16", (2,), b"123")
    with pytest.raises(ValueError, match="given twice"):
        write(tmp_path / "x", [BLOBS[0], BLOBS[0]])
    assert list(tmp_path.iterdir()) == []
