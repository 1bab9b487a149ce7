# SPDX-License-Identifier: Apache-2.0
"""apply: what it makes, when it does nothing, and everything that it refuses without leaving a trace."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from sglang_fork.errors import ForkError
from sglang_fork.stack import base, platforms, wheel, workspace
from sglang_fork.stack.git import Git, init, isolated_env

from .conftest import FILES, Fork, base_tree, build_wheel

MODEL = "sglang/srt/models/model.py"


def test_tree_is_base_then_patches_then_added_files(fork: Fork) -> None:
    fork.apply()
    fork.patch("mega-scale", MODEL, "y = x * self.width", "y = 2 * x * self.width")
    fork.export()
    tree = fork.apply()
    assert tree.patch_count == 1 and tree.base_version == "1.0"
    assert fork.git.lines("log", "--reverse", "--format=%s") == [
        "upstream sglang 1.0 (wheel tree, compiled extensions left out)",
        "Change a thing",
        "Add the fork's Python files",
        "Add the fork's kernel sources",
    ]
    assert (fork.src / MODEL).read_text().count("2 * x") == 1
    assert (fork.src / "sglang/srt/mega/_src/csrc/mega/hop.cuh").read_text() == "// kernel\n"
    assert tree.tree_hash == fork.git.out("rev-parse", "mega^{tree}")


def test_second_run_does_nothing(fork: Fork) -> None:
    assert fork.apply().changed
    before = {p: p.stat().st_mtime_ns for p in fork.src.rglob("*.py")}
    assert not fork.apply().changed
    assert {p: p.stat().st_mtime_ns for p in fork.src.rglob("*.py")} == before


def test_changed_added_file_rewrites_that_file_alone(fork: Fork) -> None:
    fork.apply()
    untouched = (fork.src / MODEL).stat().st_mtime_ns
    fork.write("python/sglang/srt/mega/__init__.py", "# changed\n")
    assert fork.apply().changed
    assert (fork.src / "sglang/srt/mega/__init__.py").read_text() == "# changed\n"
    assert (fork.src / MODEL).stat().st_mtime_ns == untouched
    (fork.root / "python/sglang/srt/mega/__init__.py").unlink()
    fork.apply()
    assert not (fork.src / "sglang/srt/mega/__init__.py").exists()


@pytest.mark.parametrize("platform", platforms.ALL_PLATFORMS, ids=lambda p: f"{p.python}-{p.machine}")
def test_every_platforms_wheel_gives_the_same_base(
    fork: Fork, platform: platforms.Platform, tmp_path: Path
) -> None:
    git = init(tmp_path / "other")
    commit = base.vendor(git, wheel.fetch_base_wheel(platform, fork.patches), "1.0")
    assert git.out("rev-parse", f"{commit}^{{tree}}") == (fork.patches / "series").read_text().split()[3]
    assert sorted(git.nul("ls-tree", "-r", "-z", "--name-only", commit)) == sorted(FILES)


def test_foreign_wheel_serves_this_machine(fork: Fork) -> None:
    machine = "aarch64" if platforms.native_platform().machine == "x86_64" else "x86_64"
    foreign = fork.apply(platform=platforms.Platform("cp312", machine))
    assert machine in foreign.wheel.name
    assert not fork.apply().changed


def test_a_current_tree_costs_little(fork: Fork, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build with nothing to do is to end at once on a loaded machine: few processes, no wheel read."""
    fork.apply()
    started: list[tuple[str, ...]] = []
    real = Git.run

    def run(git: Git, *words: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
        started.append(words)
        return real(git, *words, **options)

    monkeypatch.setattr(Git, "run", run)
    next(wheel.wheels_dir().glob("*.whl")).unlink()  # read by nobody, so missed by nobody
    assert not fork.apply().changed
    assert len(started) <= 4, started


def test_modes_do_not_reach_the_base(fork: Fork) -> None:
    fork.apply()
    modes = {line.split()[0] for line in fork.git.nul("ls-tree", "-r", "-z", "mega")}
    assert modes == {"100644"}


def refused(fork: Fork, match: str) -> None:
    """apply must refuse with ``match`` and leave tree, stamp and folder as they were."""
    head, stamp = fork.git.resolve("HEAD") if fork.src.exists() else None, workspace.read_stamp()
    with pytest.raises(ForkError, match=match) as caught:
        fork.apply()
    assert caught.value.code in (1, 2)
    assert workspace.read_stamp() == stamp
    if head:
        assert fork.git.resolve("HEAD") == head
        assert len(fork.git.lines("worktree", "list")) == 1
    assert not list(workspace.state_dir().glob("scratch-*"))


def test_corrupt_wheel(fork: Fork) -> None:
    name = platforms.native_platform().wheel_name("1.0")
    good = (fork.index / name).read_bytes()
    (fork.index / name).write_bytes(good[:-1] + b"x")
    refused(fork, "is not the pinned file")
    assert not list(wheel.wheels_dir().glob("*.whl"))
    (fork.index / name).write_bytes(good)
    assert fork.apply().changed


def test_corrupt_kept_wheel_is_fetched_again(fork: Fork) -> None:
    kept = fork.apply().wheel
    kept.write_bytes(b"torn")
    assert wheel.sha256(fork.apply().wheel) == wheel.read_sums(fork.patches)[kept.name]


def test_wheel_that_pip_cannot_find(fork: Fork) -> None:
    (fork.index / platforms.native_platform().wheel_name("1.0")).unlink()
    refused(fork, "asked pip for sglang-1.0")


def test_base_tree_that_is_not_the_pinned_one(fork: Fork) -> None:
    files = FILES | {"sglang/version.py": b"VERSION = 'other'\n"}
    platform = platforms.native_platform()
    path = build_wheel(fork.index, "1.0", platform, files)
    sums = wheel.read_sums(fork.patches) | {path.name: wheel.sha256(path)}
    fork.write(f"patches/{wheel.SUMS}", wheel.sums_text(sums))
    refused(fork, "base tree of 1.0 is")


def test_missing_and_unlisted_patch(fork: Fork) -> None:
    fork.apply()
    series = (fork.patches / "series").read_text()
    fork.write("patches/series", series + "mega-gone.patch\n")
    refused(fork, "files that do not exist: mega-gone.patch")
    fork.write("patches/series", series)
    fork.write("patches/mega-stray.patch", "")
    refused(fork, "series does not name: mega-stray.patch")


def test_patch_that_no_longer_applies(fork: Fork) -> None:
    fork.apply()
    fork.patch("mega-scale", MODEL, "y = x * self.width", "y = 2 * x * self.width")
    fork.export()
    patch = fork.patches / "mega-scale.patch"
    patch.write_text(patch.read_text().replace("-        y = x * self.width", "-        y = x + self.width"))
    refused(fork, "mega-scale.patch does not apply")


def test_file_that_is_no_patch(fork: Fork) -> None:
    fork.apply()
    fork.write("patches/mega-empty.patch", "not a mail\n")
    fork.write("patches/series", (fork.patches / "series").read_text() + "mega-empty.patch\n")
    refused(fork, "mega-empty.patch does not apply")


@pytest.mark.parametrize(
    "path", ["python/sglang/version.py", "python/sglang/version.py/x.py", "python/sglang/srt/models"]
)
def test_added_file_where_upstream_owns_the_path(fork: Fork, path: str) -> None:
    fork.apply()
    fork.write(path, "mine\n")
    refused(fork, f"upstream owns the path of: {path}")


def test_edit_and_commit_that_were_not_exported(fork: Fork) -> None:
    fork.apply()
    fork.edit(MODEL, "y = x", "y = 3 * x")
    refused(fork, "not exported:\n   M sglang/srt/models/model.py")
    fork.commit("Work")
    fork.write("python/sglang/srt/mega/more.py", "")
    refused(fork, r"not exported:\n  commit \w+ Work")


def test_new_file_that_was_not_exported(fork: Fork) -> None:
    fork.apply()
    (fork.src / "sglang/srt/mega/fresh.py").write_text("x = 1\n")
    refused(fork, r"\?\? sglang/srt/mega/fresh.py")


def test_discard_keeps_what_it_drops(fork: Fork) -> None:
    fork.apply()
    fork.edit(MODEL, "y = x", "y = 3 * x")
    (fork.src / "sglang/srt/mega/fresh.py").write_text("x = 1\n")
    fork.apply(discard=True)
    assert fork.git.lines("status", "--porcelain") == []
    assert "3 * x" not in (fork.src / MODEL).read_text()
    (kept,) = fork.git.lines("for-each-ref", "--format=%(refname)", "refs/discarded")
    assert b"3 * x" in (fork.git.show(kept, MODEL) or b"")
    assert fork.git.show(kept, "sglang/srt/mega/fresh.py") == b"x = 1\n"


def test_commits_without_a_stamp_are_not_overwritten(fork: Fork) -> None:
    fork.apply()
    fork.patch("mega-scale", MODEL, "y = x", "y = 3 * x")
    (workspace.state_dir() / "applied.json").unlink()
    refused(fork, "commits of unknown origin")


def test_tree_in_the_middle_of_a_rebase(fork: Fork) -> None:
    fork.apply()
    (fork.src / ".git/rebase-merge").mkdir()
    fork.write("python/sglang/srt/mega/more.py", "")
    refused(fork, "in the middle of a rebase")


def test_interrupted_move_is_finished(fork: Fork, monkeypatch: pytest.MonkeyPatch) -> None:
    fork.apply()
    fork.write("python/sglang/srt/mega/more.py", "x = 1\n")
    run = Git.run

    def stop_at_checkout(self: Git, *args: str, **kwargs: object) -> subprocess.CompletedProcess[bytes]:
        if args[0] == "checkout":
            (self.path / "sglang/srt/mega/more.py").write_text("x =")
            (self.path / MODEL).unlink()
            raise KeyboardInterrupt
        return run(self, *args, **kwargs)  # type: ignore[arg-type]

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Git, "run", stop_at_checkout)
        fork.apply()
    fork.apply()
    assert (fork.src / "sglang/srt/mega/more.py").read_text() == "x = 1\n"
    assert (fork.src / MODEL).exists() and not fork.git.lines("status", "--porcelain")


def test_two_commands_at_once(fork: Fork) -> None:
    with workspace.locked():
        refused(fork, "another sglang.sh")


def test_hostile_git_configuration(fork: Fork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fork.apply()
    fork.patch("mega-scale", MODEL, "y = x * self.width", "y = 2 * x * self.width")
    fork.export()
    expected = fork.git.out("rev-parse", "HEAD")
    home = tmp_path / "home"
    hooks = home / "hooks"
    hooks.mkdir(parents=True)
    for name in ("pre-commit", "applypatch-msg", "commit-msg", "post-checkout"):
        (hooks / name).write_text("#!/bin/sh\nexit 1\n")
        (hooks / name).chmod(0o755)
    (home / "attributes").write_text("* text eol=crlf\n")
    (home / ".gitconfig").write_text(
        f"[core]\nautocrlf = true\nhooksPath = {hooks}\nattributesFile = {home}/attributes\nfileMode = true\n"
        "[commit]\ngpgSign = true\ntemplate = /nonexistent\n[am]\nthreeWay = true\nmessageid = true\n"
        "[diff]\nnoprefix = true\ncontext = 0\nalgorithm = patience\nmnemonicPrefix = true\n"
        "[format]\nsignOff = true\nsubjectPrefix = X\n[user]\nname = Mallory\n[apply]\nwhitespace = fix\n"
    )
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Mallory")
    monkeypatch.setenv("SGLANG_FORK_HOME", str(tmp_path / "second"))
    before = fork.snapshot()
    fork.apply()
    assert fork.git.out("rev-parse", "HEAD") == expected
    fork.export()
    assert fork.snapshot() == before


def test_base_commit_is_that_of_a_plain_git_import(fork: Fork, tmp_path: Path) -> None:
    """fast-import of the wheel and ``git add`` of its unpacked files agree on the tree."""
    tree = tmp_path / "plain"
    for name, content in FILES.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(content)
    subprocess.run(["git", "init", "-q", str(tree)], check=True, env=isolated_env())
    git = Git(tree)
    git.run("add", "--all", "--force")
    assert git.out("write-tree") == base_tree(tmp_path / "again", fork.index)
