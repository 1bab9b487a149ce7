# SPDX-License-Identifier: Apache-2.0
"""Prunes the GPU code of other architectures from a wheel, and writes the wheel anew with a right RECORD.

Only wheels under licences that allow a changed copy are touched (torch, SGLang's own). NVIDIA's libraries
are left whole: their licence lets one pass them on as they are.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import shutil
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from sglang_fork.binary import fatbin
from sglang_fork.binary.elf import Elf, NotElfError
from sglang_fork.errors import ForkError

PRUNED = ("torch", "sglang_kernel", "sgl_flash_mla", "sgl_deep_ep")
_EPOCH = (1980, 1, 1, 0, 0, 0)
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Slimmed:
    """The new wheel, and how many bytes of GPU code were kept and zeroed."""

    path: Path
    kept: int
    zeroed: int


def is_pruned(wheel: Path) -> bool:
    """Whether wheels of this distribution are pruned."""
    return wheel.name.split("-")[0] in PRUNED


def slim_name(wheel: Path, arch: int) -> str:
    """The wheel's name with a build tag that says what it was pruned to; the version stays the locked one."""
    name, version, *tags = wheel.stem.split("-")
    return "-".join([name, version, f"0sm{arch}", *tags[-3:]]) + ".whl"


def slim(wheel: Path, arch: int, out: Path) -> Slimmed:
    """Write ``wheel`` without the GPU code that ``arch`` cannot run into folder ``out``."""
    target = out / slim_name(wheel, arch)
    kept = zeroed = 0
    with tempfile.TemporaryDirectory(dir=out) as scratch:
        changed: dict[str, Path] = {}
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                if re.search(r"\.so(\.\d+)*$", member.filename):
                    path = _extract(archive, member, Path(scratch) / f"{len(changed)}.so")
                    try:
                        now_kept, now_zeroed = fatbin.prune(path, arch)
                    except NotElfError as problem:
                        raise ForkError(f"{wheel.name}: {member.filename}: {problem}") from None
                    kept, zeroed = kept + now_kept, zeroed + now_zeroed
                    if now_zeroed:
                        changed[member.filename] = path
                        continue
                    path.unlink()
            _rewrite(archive, changed, target)
    return Slimmed(target, kept, zeroed)


def runs_on(wheel: Path, arch: int) -> bool:
    """Whether some library of the wheel holds machine code that ``arch`` can run."""
    with tempfile.TemporaryDirectory() as scratch, zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            if member.filename.endswith(".so"):
                path = _extract(archive, member, Path(scratch) / "library.so")
                if any(fatbin.fits(a, arch) for a in fatbin.architectures(Elf(path))[0]):
                    return True
    return False


def _extract(archive: zipfile.ZipFile, member: zipfile.ZipInfo, to: Path) -> Path:
    with archive.open(member) as source, to.open("wb") as target:
        shutil.copyfileobj(source, target, _CHUNK)
    return to


def _rewrite(archive: zipfile.ZipFile, changed: dict[str, Path], target: Path) -> None:
    record = next(n for n in archive.namelist() if n.endswith(".dist-info/RECORD"))
    rows = list(csv.reader(io.StringIO(archive.read(record).decode())))
    digests = {name: _digest(path) for name, path in changed.items()}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in rows:
        name = row[0]
        writer.writerow([name, digests[name], changed[name].stat().st_size] if name in changed else row)
    partial = target.with_suffix(".partial")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as new:
        for member in archive.infolist():
            fresh = zipfile.ZipInfo(member.filename, _EPOCH)
            fresh.external_attr, fresh.compress_type = member.external_attr, zipfile.ZIP_DEFLATED
            if member.filename == record:
                new.writestr(fresh, text.getvalue())
                continue
            changed_path = changed.get(member.filename)
            source = changed_path.open("rb") if changed_path else archive.open(member)
            with source, new.open(fresh, "w", force_zip64=True) as into:
                shutil.copyfileobj(source, into, _CHUNK)
    partial.replace(target)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        raw = hashlib.file_digest(file, "sha256").digest()
    return "sha256=" + base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
