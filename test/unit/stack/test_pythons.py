# SPDX-License-Identifier: Apache-2.0
"""The same under every Python: pin digests on 3.11 to 3.13, the fork's wheel on the two that build it.

Each runs in a real interpreter, where the machine has it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import zipfile
from functools import cache
from pathlib import Path

import pytest

from sglang_fork.build.forkwheel import repack
from sglang_fork.paths import ROOT
from sglang_fork.stack import base, pins, workspace
from sglang_fork.stack.platforms import Platform
from sglang_fork.stack.series import read_series

from .conftest import FILES, build_wheel


@cache
def interpreter(version: str) -> str | None:
    """A CPython of ``version``: on PATH, or one of pyenv's that its shim does not select."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [shutil.which(f"python{version}"), *sorted(map(str, pyenv.glob(f"{version}.*/bin/python")))]
    for candidate in filter(None, candidates):
        code = "import sys; print('%d.%d' % sys.version_info[:2])"
        done = subprocess.run([candidate, "-c", code], capture_output=True, text=True)
        if done.stdout.strip() == version:
            return candidate
    return None


def run(version: str, code: str, *arguments: str) -> str:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    env = os.environ | {"PYTHONPATH": str(ROOT / "python")}
    done = subprocess.run([python, "-P", "-c", code, *arguments], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


DIGESTS = """
import json, sys
from pathlib import Path
from sglang_fork.stack import pins
from sglang_fork.stack.git import Git
upstream = pins.Upstream(Git(Path(sys.argv[1])), sys.argv[2])
print(json.dumps({key: upstream.digest(key) for key in sys.argv[3:]}))
"""
# 64 files of upstream's, wider than any pin of ours.
WIDE = ("tree srt/model_executor",)


@cache
def wide(commit: str) -> dict[str, str]:
    upstream = pins.Upstream(workspace.repository(), commit)
    return {key: upstream.digest(key) for key in WIDE}


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_the_signed_pins_hold_under_it(version: str) -> None:
    signed = pins.read_pins(ROOT / "patches").digests
    git = workspace.repository()
    commit = git.out("rev-parse", base.tag(read_series(ROOT / "patches").version))
    said = run(version, DIGESTS, str(git.path), commit, *signed, *WIDE)
    assert json.loads(said) == signed | wide(commit)


REPACK = """
import hashlib, json, sys
from pathlib import Path
from sglang_fork.build.forkwheel import repack
out, tree, *wheels = map(Path, sys.argv[1:])
sources = {str(path.relative_to(tree)): path.read_bytes() for path in tree.rglob("*") if path.is_file()}
made = [repack(wheel, sources, "mega.2.gabc", out) for wheel in wheels]
print(json.dumps({wheel.name: hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in made}))
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A patched tree on disk, with the names and line ends that went wrong before."""
    for name, content in (FILES | {"sglang/srt/mega/__init__.py": b"added = 1\n" * 9999}).items():
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).write_bytes(content)
    return tmp_path / "tree"


MACHINES = [Platform("cp312", machine) for machine in ("x86_64", "aarch64")]


@pytest.mark.parametrize("version", ["3.11", "3.12"])
def test_the_wheel_is_the_same_bytes_for_either_machine(version: str, tree: Path, tmp_path: Path) -> None:
    """The other machine's wheel too: it is packed here, not built."""
    upstream = [build_wheel(tmp_path / "index", "1.0", platform, FILES) for platform in MACHINES]
    sources = {str(p.relative_to(tree)): p.read_bytes() for p in tree.rglob("*") if p.is_file()}
    expected = {}
    for wheel in upstream:
        made = repack(wheel, sources, "mega.2.gabc", tmp_path / "here")
        expected[made.name] = hashlib.sha256(made.read_bytes()).hexdigest()
    said = run(version, REPACK, str(tmp_path / "there"), str(tree), *map(str, upstream))
    assert json.loads(said) == expected
    assert sorted(expected) == [
        f"sglang-1.0+mega.2.gabc-cp312-cp312-manylinux_2_34_{machine}.whl"
        for machine in ("aarch64", "x86_64")
    ]


def test_the_other_machines_wheel_has_its_own_extensions_and_the_same_sources(
    tree: Path, tmp_path: Path
) -> None:
    sources = {str(p.relative_to(tree)): p.read_bytes() for p in tree.rglob("*") if p.is_file()}
    content = {}
    for platform in MACHINES:
        upstream = build_wheel(tmp_path / "index", "1.0", platform, FILES)
        with zipfile.ZipFile(repack(upstream, sources, "mega.2.gabc", tmp_path)) as wheel:
            content[platform.machine] = {name: wheel.read(name) for name in wheel.namelist()}
    for machine, members in content.items():
        extensions = {name: text for name, text in members.items() if name.endswith(".so")}
        assert extensions == {f"sglang/_core.cp312-{machine}.so": machine.encode()}
        info = "sglang-1.0+mega.2.gabc.dist-info/"
        assert f"Tag: cp312-cp312-manylinux_2_34_{machine}" in members[info + "WHEEL"].decode()
        assert {n: t for n, t in members.items() if n in sources} == sources
