# SPDX-License-Identifier: Apache-2.0
"""The fork's wheel: upstream's wheel of a platform with its sources replaced by the patched tree.

The bytes of the result depend on upstream's wheel and the tree alone: members are sorted and stored
uncompressed (deflate's output differs between zlib builds), with one modification time and one mode, and
RECORD is written by a CSV writer because hundreds of upstream's file names hold commas.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path

from sglang_fork.errors import ForkError
from sglang_fork.stack.git import Git

_EPOCH = (1980, 1, 1, 0, 0, 0)
_MODE = 0o100644 << 16
_VERSION_FILE = "sglang/_version.py"
_LICENSES = ("LICENSE", "NOTICE")


def local_version(patches: int, tree_hash: str, dev: bool = False) -> str:
    """The local part of the fork's version: ``mega.<patches>.g<tree>``.

    The tree's hash is in it because pip keeps an installed wheel of the same version whatever its content. An
    editable install follows a tree that changes, so it says ``dev`` instead of a hash.
    """
    return f"mega.{patches}.dev" if dev else f"mega.{patches}.g{tree_hash[:10]}"


def wheel_name(upstream: Path, local: str) -> str:
    """The file name of the fork's wheel for the platform of ``upstream``'s."""
    name, version, tags = _parse_name(upstream)
    return f"{name}-{version}+{local}-{tags}.whl"


def tree_files(repository: Path, tree_hash: str) -> dict[str, bytes]:
    """Every file of a git tree by its path: only what is committed, so no cache ever leaks in."""
    git = Git(repository)
    listing = git.run("ls-tree", "-r", "-z", "--full-tree", tree_hash).stdout
    entries = [entry.partition(b"\t") for entry in listing.split(b"\0") if entry]
    paths = [path.decode() for _, _, path in entries]
    blobs = b"\n".join(meta.split()[2] for meta, _, _ in entries) + b"\n"
    stream = git.run("cat-file", "--batch", input=blobs).stdout
    files, at = {}, 0
    for path in paths:
        line_end = stream.index(b"\n", at)
        size = int(stream[at:line_end].split()[2])
        files[path] = stream[line_end + 1 : line_end + 1 + size]
        at = line_end + size + 2
    return files


def repack(
    upstream: Path, sources: Mapping[str, bytes], local: str, out: Path, licenses: Path | None = None
) -> Path:
    """Write the fork's wheel into folder ``out`` and return its path.

    ``sources``: the patched tree, path to content. From ``upstream`` come its compiled extensions and its
    metadata. ``licenses``: a folder whose LICENSE and NOTICE go beside upstream's licence.
    """
    members = _upstream_members(upstream)
    info, new_info, version = _dist_info(upstream, local)
    files = {n: b for n, b in members.items() if n.endswith(".so")}
    files |= _metadata_files(members, info, new_info, version, licenses)
    files |= sources
    if _VERSION_FILE in files:
        files[_VERSION_FILE] = _with_version(files[_VERSION_FILE], upstream, version)
    return write_wheel(out / wheel_name(upstream, local), files, new_info)


def repack_editable(upstream: Path, tree: Path, local: str, out: Path) -> Path:
    """Write a wheel of metadata and a ``.pth`` file naming ``tree``; put the extensions into ``tree``."""
    members = _upstream_members(upstream)
    info, new_info, version = _dist_info(upstream, local)
    for name, content in members.items():
        if name.endswith(".so"):
            target = tree / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists() or target.read_bytes() != content:
                target.write_bytes(content)
    files = _metadata_files(members, info, new_info, version, None)
    files["__editable__.sglang.pth"] = f"{tree.resolve()}\n".encode()
    return write_wheel(out / wheel_name(upstream, local), files, new_info)


def _parse_name(wheel: Path) -> tuple[str, str, str]:
    match = re.fullmatch(r"([^-]+)-([^-]+)-([^-]+-[^-]+-[^-]+)\.whl", wheel.name)
    if match is None:
        raise ForkError(f"not a wheel's name: {wheel.name}")
    return match[1], match[2], match[3]


def _dist_info(upstream: Path, local: str) -> tuple[str, str, str]:
    """Upstream's metadata folder, the fork's, and the fork's version."""
    name, version, _ = _parse_name(upstream)
    return f"{name}-{version}.dist-info/", f"{name}-{version}+{local}.dist-info/", f"{version}+{local}"


def _upstream_members(wheel: Path) -> dict[str, bytes]:
    """The wheel's extensions and metadata; reading verifies each member's checksum."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            wanted = [
                m for m in archive.infolist() if m.filename.endswith(".so") or ".dist-info/" in m.filename
            ]
            return {m.filename: archive.read(m) for m in wanted if not m.is_dir()}
    except (zipfile.BadZipFile, EOFError, OSError) as error:
        raise ForkError(f"{wheel.name} cannot be read: {error}", f"delete {wheel} and build again") from None


def _metadata_files(
    members: Mapping[str, bytes], info: str, new_info: str, version: str, licenses: Path | None
) -> dict[str, bytes]:
    files = {}
    for name, content in members.items():
        if name.startswith(info) and name != info + "RECORD":
            files[new_info + name[len(info) :]] = content
    key = new_info + "METADATA"
    if key not in files:
        raise ForkError(f"the upstream wheel has no {info}METADATA")
    files[key], count = re.subn(rb"(?m)^Version: .*$", f"Version: {version}".encode(), files[key], count=1)
    if count != 1:
        raise ForkError(f"{info}METADATA has no Version")
    for name in _LICENSES if licenses else ():
        files[f"{new_info}licenses/fork/{name}"] = (licenses / name).read_bytes()  # type: ignore[operator]
    return files


def _with_version(content: bytes, upstream: Path, version: str) -> bytes:
    _, old, _ = _parse_name(upstream)
    changed = content.replace(f"'{old}'".encode(), f"'{version}'".encode(), 1)
    if changed == content:
        raise ForkError(f"{_VERSION_FILE} does not state version {old}")
    return changed


def write_wheel(target: Path, files: dict[str, bytes], info: str) -> Path:
    """Write the archive under another name and move it into place: no half-written wheel is ever found."""
    record = io.StringIO()
    rows = csv.writer(record, lineterminator="\n")
    for name, content in sorted(files.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        rows.writerow([name, f"sha256={digest}", len(content)])
    rows.writerow([info + "RECORD", "", ""])
    files = files | {info + "RECORD": record.getvalue().encode()}
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(".partial")
    try:
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED) as archive:
            for name in sorted(files, key=lambda n: (n.startswith(info), n)):
                member = zipfile.ZipInfo(name, _EPOCH)
                member.create_system = 3
                member.external_attr = _MODE
                archive.writestr(member, files[name])
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return target
