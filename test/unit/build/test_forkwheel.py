# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from sglang_fork.build.forkwheel import local_version, repack, repack_editable, tree_files, wheel_name
from sglang_fork.errors import ForkError

LOCAL = "mega.2.gabc"
NEW = f"sglang-1.2.3+{LOCAL}.dist-info/"
TREE = {
    "sglang/__init__.py": b"patched\n",
    "sglang/_version.py": b"__version__ = version = '1.2.3'\n",
    "sglang/config/E=256,N=128,device=H200.json": b"{}",
    "sglang/crlf.py": b"a = 1\r\n",
    "sglang/srt/mega/_src/kernel.cuh": b"// kernel\n",
}


def record(wheel: Path) -> dict[str, tuple[str, str]]:
    with zipfile.ZipFile(wheel) as archive:
        return {
            row[0]: (row[1], row[2]) for row in csv.reader(io.StringIO(archive.read(NEW + "RECORD").decode()))
        }


def test_content(upstream: Path, tmp_path: Path) -> None:
    wheel = repack(upstream, TREE, LOCAL, tmp_path / "out")
    assert wheel.name == f"sglang-1.2.3+{LOCAL}-cp312-cp312-manylinux_2_34_x86_64.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        assert archive.read("sglang/__init__.py") == b"patched\n"
        assert archive.read("sglang/crlf.py") == b"a = 1\r\n"
        assert b"'1.2.3+mega.2.gabc'" in archive.read("sglang/_version.py")
        metadata = archive.read(NEW + "METADATA").decode()
    assert "sglang/old.py" not in names, "a file that the patched tree lacks must not come from upstream"
    assert "sglang/ext.cpython-312-x86_64-linux-gnu.so" in names
    assert not any(name.startswith("sglang-1.2.3.dist-info") for name in names)
    assert f"\nVersion: 1.2.3+{LOCAL}\n" in metadata
    assert "        Version: not this line" in metadata and metadata.count("Requires-Dist") == 4


def test_record_covers_every_member_with_commas_quoted(upstream: Path, tmp_path: Path) -> None:
    wheel = repack(upstream, TREE, LOCAL, tmp_path)
    rows = record(wheel)
    with zipfile.ZipFile(wheel) as archive:
        assert set(rows) == set(archive.namelist())
        for name, (digest, size) in rows.items():
            if name == NEW + "RECORD":
                assert (digest, size) == ("", "")
                continue
            content = archive.read(name)
            want = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            assert (digest, size) == (f"sha256={want}", str(len(content)))


def test_same_bytes_whatever_the_clock_the_umask_and_the_python(upstream: Path, tmp_path: Path) -> None:
    first = repack(upstream, TREE, LOCAL, tmp_path / "a").read_bytes()
    time.sleep(0.01)
    before = os.umask(0o077)
    try:
        second = repack(upstream, dict(reversed(TREE.items())), LOCAL, tmp_path / "b").read_bytes()
    finally:
        os.umask(before)
    assert first == second
    with zipfile.ZipFile(tmp_path / "a" / wheel_name(upstream, LOCAL)) as archive:
        for member in archive.infolist():
            assert member.compress_type == zipfile.ZIP_STORED, "deflate differs between zlib builds"
            assert member.date_time == (1980, 1, 1, 0, 0, 0) and member.external_attr == 0o100644 << 16


def test_pip_and_importlib_accept_it(upstream: Path, tmp_path: Path) -> None:
    wheel = repack(upstream, TREE, LOCAL, tmp_path)
    sys.path.insert(0, str(wheel))
    try:
        code = "import importlib.metadata as m; print(m.version('sglang'), len(m.files('sglang')))"
        done = subprocess.run(
            [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(wheel)!r}); {code}"],
            capture_output=True,
            text=True,
        )
    finally:
        sys.path.remove(str(wheel))
    assert done.stdout.split() == [f"1.2.3+{LOCAL}", str(len(record(wheel)))], done.stderr


def test_licences_of_the_fork_are_in_it(upstream: Path, tmp_path: Path, checkout: Path) -> None:
    wheel = repack(upstream, TREE, LOCAL, tmp_path, licenses=checkout)
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read(NEW + "licenses/fork/NOTICE") == (checkout / "NOTICE").read_bytes()


def test_editable_names_the_tree_and_carries_the_extensions(upstream: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    wheel = repack_editable(upstream, tree, "mega.2.dev", tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read("__editable__.sglang.pth").decode() == f"{tree}\n"
        assert not any(name.startswith("sglang/") for name in archive.namelist())
    assert (tree / "sglang/ext.cpython-312-x86_64-linux-gnu.so").read_bytes().startswith(b"\x7fELF")


def test_corrupt_upstream_is_one_clear_error_and_leaves_nothing(upstream: Path, tmp_path: Path) -> None:
    upstream.write_bytes(upstream.read_bytes()[:400])
    with pytest.raises(ForkError, match=r"cannot be read.*\n.*delete .*build again"):
        repack(upstream, TREE, LOCAL, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_flipped_byte_in_upstream_is_noticed(upstream: Path, tmp_path: Path) -> None:
    content = bytearray(upstream.read_bytes())
    at = content.index(b"\x7fELF extension")
    content[at + 6] ^= 1
    upstream.write_bytes(bytes(content))
    with pytest.raises(ForkError, match="cannot be read"):
        repack(upstream, TREE, LOCAL, tmp_path / "out")


def test_interrupted_write_leaves_no_wheel(
    upstream: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(zipfile.ZipFile, "writestr", full)
    with pytest.raises(OSError, match="No space"):
        repack(upstream, TREE, LOCAL, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_version_that_is_not_stated_is_refused(upstream: Path, tmp_path: Path) -> None:
    with pytest.raises(ForkError, match="does not state version"):
        repack(upstream, TREE | {"sglang/_version.py": b"version = '9'\n"}, LOCAL, tmp_path)


def test_tree_files_is_what_is_committed(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    (repository / "sglang").mkdir(parents=True)
    for name, content in {"sglang/a,b.json": b"1\n", "sglang/crlf.py": b"x\r\n", "sglang/empty": b""}.items():
        (repository / name).write_bytes(content)
    git = ["git", "-C", str(repository), "-c", "user.name=t", "-c", "user.email=t@example.invalid"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "c"]):
        subprocess.run([*git, "-c", "core.autocrlf=false", *command], check=True)
    (repository / "sglang/untracked.so").write_bytes(b"x")
    tree = subprocess.run([*git, "rev-parse", "HEAD^{tree}"], capture_output=True, text=True).stdout.strip()
    assert tree_files(repository, tree) == {
        "sglang/a,b.json": b"1\n",
        "sglang/crlf.py": b"x\r\n",
        "sglang/empty": b"",
    }


def test_local_version_follows_the_tree() -> None:
    assert local_version(7, "0123456789abcdef") == "mega.7.g0123456789"
    assert local_version(7, "0123456789abcdef", dev=True) == "mega.7.dev"
