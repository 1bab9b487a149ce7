# SPDX-License-Identifier: Apache-2.0
"""A tiny synthetic upstream: wheels of a few files, a checkout of the fork on them, and no network."""

from __future__ import annotations

import shutil
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sglang_fork.stack import apply, base, check, export, faults, pip, platforms, wheel, workspace
from sglang_fork.stack.git import Git, init, isolated_env

MODEL = """\
import math


class Layer:
    def __init__(self, width):
        self.width = width

    def forward(self, x):
        low = x
        high = x
        y = x * self.width
        low = y
        high = low
        return y


class Model(Layer):
    def forward(self, x):
        y = super().forward(x)
        low = y
        high = low
        z = math.sqrt(y)
        low = z
        return z
"""

FILES = {
    "sglang/__init__.py": b"",
    "sglang/version.py": b"VERSION = 1\n",
    "sglang/srt/models/model.py": MODEL.encode(),
    "sglang/srt/crlf.py": b"def f():\r\n    a = 1\r\n    b = 2\r\n    return a + b\r\n",
    "sglang/srt/configs/E=8,N=16.json": b"{}\n",
    "sglang/srt/.gitignore": b"*.json\n",
}


def build_wheel(folder: Path, version: str, platform: platforms.Platform, files: dict[str, bytes]) -> Path:
    """A wheel holding ``files``, a compiled extension of this platform alone, and metadata."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / platform.wheel_name(version)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        archive.writestr(f"sglang/_core.{platform.python}-{platform.machine}.so", platform.machine)
        info = f"sglang-{version}.dist-info"
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.4\nName: sglang\nVersion: {version}\n")
        tag = path.stem.split("-", 2)[2]
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}\n")
    return path


HEADER = """\

Why this patch exists.

Upstream-Status: Pending
Test: test/unit/test_x.py
Drop-When: upstream does it
Patch-Id: """


@dataclass
class Fork:
    """A checkout of the fork in a temporary folder, on a synthetic upstream."""

    root: Path
    index: Path

    @property
    def patches(self) -> Path:
        return self.root / "patches"

    @property
    def src(self) -> Path:
        return workspace.source_dir()

    @property
    def git(self) -> Git:
        return Git(self.src)

    def release(self, version: str, files: dict[str, bytes]) -> dict[str, str]:
        """Publish upstream's wheels of ``version``; returns their sums."""
        made = [build_wheel(self.index, version, p, files) for p in platforms.ALL_PLATFORMS]
        return {p.name: wheel.sha256(p) for p in made}

    def write(self, path: str, content: str | bytes) -> Path:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content if isinstance(content, bytes) else content.encode())
        return target

    def edit(self, path: str, old: str, new: str) -> None:
        """Replace text in a file of the patched tree, line endings kept."""
        target = self.src / path
        text = target.read_bytes()
        assert old.encode() in text
        target.write_bytes(text.replace(old.encode(), new.encode(), 1))

    def commit(self, message: str) -> None:
        self.git.run("add", "--all")
        self.git.run("commit", "--quiet", "-m", message)

    def patch(self, name: str, path: str, old: str, new: str, subject: str = "Change a thing") -> None:
        """Commit one edit of an upstream file as the patch ``name``."""
        self.edit(path, old, new)
        self.commit(f"{subject}\n{HEADER}{name}\n")

    def apply(self, **kwargs: object) -> apply.AppliedTree:
        return apply.apply_stack(checkout=self.root, **kwargs)  # type: ignore[arg-type]

    def export(self) -> export.Exported:
        return export.export_tree(self.root)

    def check(self) -> check.Report:
        return check.check_stack(self.root)

    def faults(self) -> list[str]:
        """The texts of all faults of ``check``."""
        return [text for _, text in self.check().faults]

    def snapshot(self) -> dict[str, bytes]:
        """Every file under patches/ and the overlay folders."""
        tops = ("patches", "python", "sgl-kernel")
        found = [p for top in tops for p in (self.root / top).rglob("*") if p.is_file()]
        return {p.relative_to(self.root).as_posix(): p.read_bytes() for p in found}


@pytest.fixture
def fork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fork]:
    """A fork on release 1.0 with no patches and one added file; wheels come from a folder instead of pip."""
    monkeypatch.setenv("SGLANG_FORK_HOME", str(tmp_path / "state"))
    made = Fork(tmp_path / "checkout", tmp_path / "index")

    def download(platform: platforms.Platform, version: str, folder: Path) -> None:
        source = made.index / platform.wheel_name(version)
        if source.exists():
            shutil.copy(source, folder)

    def published_sum(platform: platforms.Platform, version: str) -> str:
        return wheel.sha256(made.index / platform.wheel_name(version))

    monkeypatch.setattr(pip, "download", download)
    monkeypatch.setattr(pip, "published_sum", published_sum)
    monkeypatch.setattr(faults, "check_lock", lambda metadata, folder: [])
    sums = made.release("1.0", FILES)
    made.write(f"patches/{wheel.SUMS}", wheel.sums_text(sums))
    made.write("python/sglang/srt/mega/__init__.py", "# added\n")
    made.write("sgl-kernel/csrc/mega/hop.cuh", "// kernel\n")
    made.write("patches/series", f"base sglang==1.0\nbase-tree {base_tree(tmp_path / 'probe', made.index)}\n")
    made.write("patches/pins", "pinned-at sglang==1.0\n")
    made.write("test/unit/test_x.py", "def test_y(): ...\n\n\nclass TestZ:\n    def test_w(self): ...\n")
    yield made


def base_tree(repo: Path, index: Path, version: str = "1.0") -> str:
    """The tree id of a synthetic release."""
    git = init(repo)
    commit = base.vendor(git, index / platforms.native_platform().wheel_name(version), version)
    return git.out("rev-parse", f"{commit}^{{tree}}")


@pytest.fixture
def git_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Run git as a person would, with the configuration that their home folder holds."""

    def run(repo: Path, *args: str) -> None:
        env = {k: v for k, v in isolated_env().items() if not k.startswith("GIT_")}
        env["HOME"] = str(tmp_path / "home")
        subprocess.run(["git", "-C", str(repo), *args], check=True, env=env, capture_output=True)

    return run
