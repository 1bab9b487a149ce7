# SPDX-License-Identifier: Apache-2.0
"""``bench cache``: a machine's JIT caches packed into one file, and unpacked on another of the same kind.

A cold start of GLM's sparse attention compiles for minutes. Caches are only valid for the same architecture,
compilers and packages, so the file says what it was made with and an import elsewhere is refused.
"""

from __future__ import annotations

import io
import json
import platform
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

from sglang_fork.bench import machine
from sglang_fork.errors import ForkError

MANIFEST = "manifest.json"


def fingerprint(versions: dict[str, str]) -> dict[str, str]:
    """What a compiled kernel depends on."""
    return {
        **{k: v for k, v in versions.items() if k != "driver"},
        "machine": platform.machine(),
        "card": machine.card() or "none",
        "nvcc": _first_line("nvcc", "release"),
        "c++": _first_line("c++", ""),
    }


def _first_line(tool: str, having: str) -> str:
    if shutil.which(tool) is None:
        return "none"
    shown = subprocess.run([tool, "--version"], capture_output=True, text=True, check=False).stdout
    return next((line.strip() for line in shown.splitlines() if having in line), "unknown")


def export(folder: Path, file: Path, made_with: dict[str, str]) -> tuple[int, int]:
    """Pack every cache below ``folder``; (files, bytes) packed. Lock files are left out."""
    if not folder.is_dir():
        raise ForkError(f"no caches in {folder}", "serve or measure something first")
    count = size = 0
    with tarfile.open(file, "w:xz") as pack:
        _add(pack, MANIFEST, json.dumps(made_with, indent=1).encode())
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.is_symlink() and path.suffix != ".lock":
                pack.add(path, arcname=str(path.relative_to(folder)), recursive=False)
                count, size = count + 1, size + path.stat().st_size
    return count, size


def _add(pack: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    pack.addfile(info, io.BytesIO(content))


def differences(file: Path, here: dict[str, str]) -> list[str]:
    """What the file was made with and this machine has otherwise."""
    made = read_manifest(file)
    return [
        f"{k}: made with {made.get(k, 'nothing')}, here {here.get(k, 'nothing')}"
        for k in sorted({*made, *here})
        if made.get(k) != here.get(k)
    ]


def read_manifest(file: Path) -> dict[str, str]:
    try:
        with tarfile.open(file) as pack:
            first = pack.next()
            content = pack.extractfile(first) if first is not None and first.name == MANIFEST else None
            if content is None:
                raise ForkError(f"{file} is no cache export: it has no {MANIFEST}")
            return dict(json.loads(content.read()))
    except (OSError, tarfile.TarError, ValueError) as error:
        raise ForkError(f"{file} is no cache export: {error}") from error


def unpack(file: Path, folder: Path, here: dict[str, str], *, force: bool = False) -> int:
    """Unpack into ``folder``; the number of files. Raises ``ForkError`` for another machine's, unless
    ``force``."""
    if (other := differences(file, here)) and not force:
        raise ForkError(
            "these caches are of another machine: " + "; ".join(other), "--force takes them anyway"
        )
    count = 0
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file) as pack:
        for member in pack:
            if member.name != MANIFEST and member.isfile():
                pack.extract(member, folder, filter="data")
                count += 1
    return count


def run(words: Sequence[str], folder: Path, versions: dict[str, str]) -> int:
    """``export FILE`` or ``import FILE [--force]``."""
    if len(words) < 2 or words[0] not in ("export", "import") or set(words[2:]) - {"--force"}:
        raise ForkError(f"bench cache: {' '.join(words) or 'nothing'} is not understood",
                        "bench cache export FILE | import FILE [--force]")  # fmt: skip
    file, here = Path(words[1]), fingerprint(versions)
    if words[0] == "export":
        count, size = export(folder, file, here)
        print(f"{count} files, {size / 1e6:.1f} MB, packed into {file} ({file.stat().st_size / 1e6:.1f} MB)")
    else:
        print(f"{unpack(file, folder, here, force='--force' in words)} files unpacked into {folder}")
    return 0
