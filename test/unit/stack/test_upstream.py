# SPDX-License-Identifier: Apache-2.0
"""upstream status, and the whole fork as a series for upstream's repository."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from sglang_fork.errors import ForkError
from sglang_fork.stack import gitseries, header, upstream
from sglang_fork.stack.git import Git, isolated_env

from .conftest import FILES, HEADER, Fork

MODEL = "sglang/srt/models/model.py"


@pytest.fixture
def patched(fork: Fork) -> Fork:
    fork.apply()
    fork.edit(MODEL, "y = x * self.width", "y = 2 * x * self.width")
    rules = f"Drop-Check: exists {MODEL}::Layer.backward\nDrop-Check: release >= 1.1\nPatch-Id: "
    fork.commit(f"Scale twice\n{HEADER.replace('Patch-Id: ', rules)}mega-scale\n")
    fork.patch("mega-root", MODEL, "z = math.sqrt(y)", "z = math.sqrt(abs(y))", "Guard the root")
    fork.export()
    return fork


def standing(fork: Fork, release: str | None = None) -> dict[str, tuple[str, bool]]:
    label, found = upstream.status(release, fork.root)
    assert label == (release or "1.0")
    return {s.name: (s.verdict, s.contained) for s in found}


def test_status_on_the_base(patched: Fork) -> None:
    assert standing(patched) == {
        "mega-scale": (upstream.HOLDS_NOT, False),
        "mega-root": (upstream.UNDECIDED, False),
    }


def test_status_on_a_release_that_did_it(patched: Fork) -> None:
    model = FILES[MODEL].replace(
        b"forward(self, x):\n        low = x", b"backward(self, x):\n        low = x"
    )
    model = model.replace(b"math.sqrt(y)", b"math.sqrt(abs(y))")
    patched.release("1.1", FILES | {MODEL: model})
    assert standing(patched, "1.1") == {
        "mega-scale": (upstream.HOLDS, False),
        "mega-root": (upstream.UNDECIDED, True),
    }


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (f"exists {MODEL}", True),
        (f"exists {MODEL}::Model.forward", True),
        (f"exists {MODEL}::Model.backward", False),
        (f"absent {MODEL}::Model.backward", True),
        ("absent sglang/gone.py", True),
        ("exists sglang/gone.py::f", False),
        (f"contains {MODEL} import math", True),
        (f"lacks {MODEL} import math", False),
        ("lacks sglang/gone.py anything", True),
        ("release >= 1.0", True),
        ("release >= 1.0.1", False),
    ],
)
def test_rules(patched: Fork, rule: str, expected: bool) -> None:
    assert header.lint(f"S\n{HEADER.replace('Patch-Id', f'Drop-Check: {rule}{chr(10)}Patch-Id')}x\n") == []
    assert upstream.holds(patched.git, "upstream/1.0", "1.0", rule) is expected


def test_rule_that_nobody_knows() -> None:
    found = header.lint(f"S\n{HEADER.replace('Patch-Id', f'Drop-Check: when it rains{chr(10)}Patch-Id')}x\n")
    assert found == ["Drop-Check: 'when it rains' is no rule that upstream status knows"]


def repository(folder: Path, files: dict[str, bytes]) -> Git:
    for path, content in files.items():
        (folder / "python" / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "python" / path).write_bytes(content)
    subprocess.run(["git", "init", "-q", str(folder)], check=True, env=isolated_env())
    git = Git(folder)
    git.run("add", "--all", "--force")
    git.run("commit", "--quiet", "-m", "upstream")
    return git


def test_series_for_upstreams_repository(patched: Fork, tmp_path: Path) -> None:
    out = tmp_path / "series"
    files = gitseries.export_git(out, patched.root)
    first = {p.name: p.read_bytes() for p in files}
    assert list(first) == [
        "0001-mega-scale.patch",
        "0002-mega-root.patch",
        "0003-add-python-sglang.patch",
        "0004-add-sgl-kernel.patch",
    ]
    assert {p.name: p.read_bytes() for p in gitseries.export_git(out, patched.root)} == first
    git = repository(tmp_path / "clean", FILES)
    git.run("am", "--keep-cr", *map(str, files))
    assert "2 * x" in (tmp_path / "clean/python" / MODEL).read_text()
    assert (tmp_path / "clean/sgl-kernel/csrc/mega/hop.cuh").exists()
    assert (tmp_path / "clean/python/sglang/srt/mega/__init__.py").exists()


def test_series_conflict_and_continue(patched: Fork, tmp_path: Path) -> None:
    files = gitseries.export_git(tmp_path / "series", patched.root)
    git = repository(tmp_path / "moved", FILES)
    moved = FILES[MODEL].replace(b"y = x * self.width", b"y = x / self.width")
    (tmp_path / "moved/python" / MODEL).write_bytes(moved)
    git.run("commit", "--quiet", "-am", "Divide")
    done = git.run("am", "--3way", "--keep-cr", *map(str, files), check=False)
    assert done.returncode != 0 and git.lines("diff", "--name-only", "--diff-filter=U") == [f"python/{MODEL}"]
    (tmp_path / "moved/python" / MODEL).write_bytes(moved.replace(b"y = x / ", b"y = 2 * x / "))
    git.run("add", "--all")
    git.run("am", "--continue")
    assert len(git.lines("log", "--format=%s")) == 6
    assert b"abs(y)" in (tmp_path / "moved/python" / MODEL).read_bytes()


def test_series_folder_with_other_files(patched: Fork, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ForkError, match=r"holds other files"):
        gitseries.export_git(tmp_path, patched.root)
    assert (tmp_path / "notes.txt").read_text() == "mine"
