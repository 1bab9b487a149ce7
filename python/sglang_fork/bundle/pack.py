# SPDX-License-Identifier: Apache-2.0
"""Writes a bundle: payload folder, archive, pieces, sums and the installer script."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from sglang_fork.bundle import sbom
from sglang_fork.bundle.slim import Slimmed, is_pruned, slim
from sglang_fork.errors import ForkError
from sglang_fork.paths import ROOT
from sglang_fork.stack.wheel import sha256

MANIFEST = "manifest.json"
ARCHIVE = "payload.tar"
SUMS = "SHA256SUMS"
MIB = 1 << 20


@dataclass(frozen=True)
class Manifest:
    """What the installer needs. ``wheels``: distribution to file name; ``sums``: SHA-256 by file name."""

    fork: str
    python: str
    machine: str
    arch: int
    lock: str
    wheels: dict[str, str]
    sums: dict[str, str]

    def text(self) -> str:
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"


@dataclass(frozen=True)
class Row:
    """One line of the size report, in bytes."""

    name: str
    before: int
    after: int


def choose_wheels(wheels: Sequence[Path], arch: int, out: Path) -> tuple[list[Path], list[Row]]:
    """The wheels to ship, pruned ones made in ``out``, and the size report."""
    out.mkdir(parents=True, exist_ok=True)
    chosen, rows = [], []
    for wheel in wheels:
        done = slim(wheel, arch, out) if is_pruned(wheel) else None
        shipped = _smaller(wheel, done) if done else wheel
        chosen.append(shipped)
        rows.append(Row(wheel.name, wheel.stat().st_size, shipped.stat().st_size))
    return chosen, rows


def _smaller(wheel: Path, done: Slimmed) -> Path:
    """The pruned wheel, or the original where pruning found nothing to zero."""
    if done.zeroed:
        return done.path
    done.path.unlink()
    return wheel


def write_payload(
    payload: Path, manifest: Manifest, wheels: Sequence[Path], uv: Path, caches: Path | None
) -> None:
    """Lay out the payload: wheels, the installer's uv, checkout, licences, bill of materials, caches."""
    shutil.rmtree(payload, ignore_errors=True)
    (payload / "wheels").mkdir(parents=True)
    for wheel in wheels:
        _link(wheel, payload / "wheels" / wheel.name)
    _link(uv, payload / uv.name)
    export_checkout(payload / "checkout")
    pruned = {wheel.name for wheel in wheels if "-0sm" in wheel.name}
    components = [sbom.component(wheel, wheel.name in pruned) for wheel in [*wheels, uv]]
    sbom.write_licences(components, payload / "licences")
    (payload / "sbom.cdx.json").write_text(sbom.bill_of_materials(components, "sglang-mega", manifest.fork))
    if caches is not None:
        if not caches.is_dir():
            raise ForkError(f"--caches: {caches} is not a folder", "name a folder like .sglang/cache")
        shutil.copytree(caches, payload / "caches", symlinks=True)
    (payload / MANIFEST).write_text(manifest.text())


def export_checkout(out: Path, root: Path = ROOT) -> None:
    """Copy the checkout's tracked files."""
    done = subprocess.run(["git", "-C", str(root), "ls-files", "-z"], capture_output=True)
    if done.returncode:
        raise ForkError(f"{root} is not a git checkout", "bundle from a clone")
    for name in done.stdout.decode().split("\0"):
        if name and (root / name).is_file():
            target = out / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / name, target)


def write_archive(payload: Path, out: Path, piece_mib: int | None) -> list[Path]:
    """Write ``payload.tar`` (or pieces), sums and ``install.sh`` into ``out``; return the archive's files."""
    out.mkdir(parents=True, exist_ok=True)
    for old in [*out.glob(f"{ARCHIVE}*"), out / SUMS]:
        old.unlink(missing_ok=True)
    writer = _Pieces(out / ARCHIVE, piece_mib * MIB if piece_mib else None)
    with tarfile.open(fileobj=writer, mode="w|", format=tarfile.PAX_FORMAT) as tar:  # type: ignore[call-overload]
        for path in sorted(payload.rglob("*")):
            tar.add(path, arcname=str(path.relative_to(payload)), recursive=False, filter=_plain)
    files = writer.close()
    (out / SUMS).write_text("".join(f"{sha256(path)}  {path.name}\n" for path in files))
    installer = Path(__file__).with_name("install.sh")
    shutil.copy(installer, out / installer.name)
    (out / installer.name).chmod(0o755)
    return files


def report(rows: Sequence[Row]) -> str:
    """The size table: what pruning changed, the largest wheels, the sum."""
    lines = [f"{'MiB':>8} {'pruned':>8}  wheel"]
    for row in sorted(rows, key=lambda r: -r.after)[:20]:
        mark = f"{(row.after - row.before) / MIB:+8.1f}" if row.after != row.before else " " * 8
        lines.append(f"{row.after / MIB:8.1f} {mark}  {row.name}")
    before, after = sum(r.before for r in rows), sum(r.after for r in rows)
    lines.append(f"{after / MIB:8.1f} {(after - before) / MIB:+8.1f}  {len(rows)} wheels in all")
    return "\n".join(lines)


class _Pieces:
    """A file that goes on in ``NAME.001``, ``NAME.002``, ... after every ``limit`` bytes, if there is one."""

    def __init__(self, path: Path, limit: int | None) -> None:
        self._path, self._limit = path, limit
        self._files: list[Path] = []
        self._file = self._next()

    def write(self, content: bytes) -> int:
        view = memoryview(content)
        while self._limit is not None and len(view) > self._left:
            self._file.write(view[: self._left])
            view = view[self._left :]
            self._file.close()
            self._file = self._next()
        self._file.write(view)
        self._left -= len(view)
        return len(content)

    def close(self) -> list[Path]:
        self._file.close()
        return self._files

    def _next(self) -> BinaryIO:
        name = self._path
        if self._limit is not None:
            name = name.with_name(f"{name.name}.{len(self._files):03}")
        self._files.append(name)
        self._left = self._limit or 0
        return name.open("wb")


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """A member without owner and time; executable or not is all that stays of its mode."""
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mtime = 0
    info.mode = 0o755 if info.isdir() or info.mode & 0o100 else 0o644
    return info


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copy(source, target)
