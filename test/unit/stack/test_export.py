# SPDX-License-Identifier: Apache-2.0
"""export: commits become patches byte for byte, added files go home, and what it refuses changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sglang_fork.errors import ForkError
from sglang_fork.stack import export, header, workspace
from sglang_fork.stack.git import Git

from .conftest import HEADER, Fork

MODEL = "sglang/srt/models/model.py"
CRLF = "sglang/srt/crlf.py"


def three_patches(fork: Fork) -> None:
    fork.apply()
    fork.patch("cpu-scale", MODEL, "y = x * self.width", "y = 2 * x * self.width", "Scale twice")
    fork.patch("mega-root", MODEL, "z = math.sqrt(y)", "z = math.sqrt(abs(y))", "Guard the root")
    fork.patch("crlf", CRLF, "b = 2", "b = 3", "Edit a file with CRLF lines")


def test_patches_in_commit_order_named_by_their_id(fork: Fork) -> None:
    three_patches(fork)
    done = fork.export()
    assert done.written == ("cpu-scale.patch", "mega-root.patch", "crlf.patch")
    assert (fork.patches / "series").read_text().split("\n")[2:5] == list(done.written)
    text = (fork.patches / "mega-root.patch").read_text()
    assert text.startswith("From " + "0" * 40)
    assert "From: SGLang Mega <mega@example.invalid>\nDate: Thu, 1 Jan 1970 00:00:00 +0000\n" in text
    assert "Subject: [PATCH] Guard the root\n" in text
    assert f"Hook: {MODEL}::Model.forward\n" in text


def test_apply_then_export_is_byte_stable(
    fork: Fork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    three_patches(fork)
    fork.export()
    before, tip = fork.snapshot(), fork.git.resolve("HEAD")
    assert fork.export().written == ()
    assert not fork.apply().changed
    monkeypatch.setenv("SGLANG_FORK_HOME", str(tmp_path / "elsewhere"))
    fork.apply()
    assert fork.git.resolve("HEAD") == tip
    fork.export()
    assert fork.snapshot() == before


def test_crlf_lines_survive(fork: Fork) -> None:
    three_patches(fork)
    fork.export()
    assert b"-    b = 2\r\n+    b = 3\r\n" in (fork.patches / "crlf.patch").read_bytes()
    fork.apply(discard=True)
    assert (fork.src / CRLF).read_bytes() == b"def f():\r\n    a = 1\r\n    b = 3\r\n    return a + b\r\n"


def test_amending_one_patch_rewrites_what_follows_in_the_same_file_alone(fork: Fork) -> None:
    three_patches(fork)
    fork.export()
    fork.edit(MODEL, "y = 2 * x", "y = 4 * x")
    fork.git.run("add", "--all")
    fork.git.run("commit", "--quiet", "--fixup", ":/Scale twice")
    fork.git.run(
        "rebase", "--quiet", "-i", "--autosquash", "upstream/1.0", env={"GIT_SEQUENCE_EDITOR": "true"}
    )
    assert fork.export().written == ("cpu-scale.patch", "mega-root.patch")


def test_dropped_commit_drops_its_patch(fork: Fork) -> None:
    three_patches(fork)
    fork.export()
    commits = fork.git.lines("log", "--format=%H %s")
    gone = next(line.split()[0] for line in commits if "Guard the root" in line)
    fork.git.run("rebase", "--quiet", "--onto", f"{gone}^", gone, "mega")
    assert fork.export().removed == ("mega-root.patch",)
    assert not (fork.patches / "mega-root.patch").exists()
    assert "mega-root" not in (fork.patches / "series").read_text()


def test_added_files_go_home_and_never_into_a_patch(fork: Fork) -> None:
    fork.apply()
    fork.edit(MODEL, "import math", "import math\n\nimport sglang.srt.mega")
    (fork.src / "sglang/srt/mega/fresh.py").write_text("x = 1\n")
    (fork.src / "sglang/srt/mega/_src/csrc/mega/hop.cuh").write_text("// edited\n")
    fork.commit(f"Use mega\n{HEADER}mega-use\n")
    (fork.src / "sglang/srt/mega/__init__.py").write_text("# not committed\n")
    done = fork.export()
    assert sorted(done.overlay) == [
        "python/sglang/srt/mega/__init__.py",
        "python/sglang/srt/mega/fresh.py",
        "sgl-kernel/csrc/mega/hop.cuh",
    ]
    assert (fork.root / "python/sglang/srt/mega/fresh.py").read_text() == "x = 1\n"
    assert (fork.root / "python/sglang/srt/mega/__init__.py").read_text() == "# not committed\n"
    assert (fork.root / "sgl-kernel/csrc/mega/hop.cuh").read_text() == "// edited\n"
    assert (fork.patches / "mega-use.patch").read_text().count("diff --git") == 1
    assert not fork.apply().changed


def test_deleted_and_renamed_added_files(fork: Fork) -> None:
    fork.apply()
    source = fork.src / "sglang/srt/mega/_src/csrc/mega"
    (source / "hop.cuh").rename(source / "hop_a.cuh")
    fork.export()
    assert sorted(p.name for p in (fork.root / "sgl-kernel/csrc/mega").iterdir()) == ["hop_a.cuh"]


def test_checkout_edits_survive_an_export(fork: Fork) -> None:
    fork.apply()
    fork.write("python/sglang/srt/mega/__init__.py", "# edited in the checkout\n")
    (fork.src / "sglang/srt/mega/fresh.py").write_text("x = 1\n")
    fork.export()
    assert (fork.root / "python/sglang/srt/mega/__init__.py").read_text() == "# edited in the checkout\n"
    assert (fork.src / "sglang/srt/mega/__init__.py").read_text() == "# edited in the checkout\n"
    assert (fork.root / "python/sglang/srt/mega/fresh.py").exists()


def refused(fork: Fork, match: str) -> None:
    before, head = fork.snapshot(), fork.git.resolve("HEAD")
    with pytest.raises(ForkError, match=match):
        fork.export()
    assert fork.snapshot() == before and fork.git.resolve("HEAD") == head
    assert not list(workspace.state_dir().glob("scratch-*"))


def test_added_file_changed_on_both_sides(fork: Fork) -> None:
    fork.apply()
    fork.write("python/sglang/srt/mega/__init__.py", "# here\n")
    (fork.src / "sglang/srt/mega/__init__.py").write_text("# there\n")
    refused(fork, "both in the patched tree and in the checkout: python/sglang/srt/mega/__init__.py")
    (fork.src / "sglang/srt/mega/__init__.py").write_text("# here\n")
    assert fork.export().overlay == ()


def test_uncommitted_edit_of_an_upstream_file(fork: Fork) -> None:
    fork.apply()
    fork.edit(MODEL, "y = x", "y = 2 * x")
    refused(fork, f"not committed: {MODEL}")


def test_file_outside_the_package(fork: Fork) -> None:
    fork.apply()
    (fork.src / "setup.py").write_text("")
    refused(fork, "setup.py is outside the sglang package")


def test_no_tree_yet(fork: Fork) -> None:
    with pytest.raises(ForkError, match="no patched tree"):
        fork.export()


def test_merge_commit(fork: Fork) -> None:
    fork.apply()
    fork.git.run("checkout", "--quiet", "-b", "side")
    fork.patch("side", CRLF, "b = 2", "b = 4")
    fork.git.run("checkout", "--quiet", "mega")
    fork.patch("main", MODEL, "y = x", "y = 2 * x")
    fork.git.run("merge", "--quiet", "side", "-m", "Merge")
    refused(fork, "Merge is a merge")


def test_one_patch_id_twice(fork: Fork) -> None:
    fork.apply()
    fork.patch("same", CRLF, "b = 2", "b = 4")
    fork.patch("same", CRLF, "b = 4", "b = 5")
    refused(fork, "two commits have Patch-Id same")


def test_edit_that_does_not_compile(fork: Fork) -> None:
    fork.apply()
    fork.patch("broken", MODEL, "y = x", "y = = x")
    refused(fork, r"model.py does not compile: line 11")


GOOD = f"Change a thing\n{HEADER}x\n"

FAULTS = {
    "no why": (GOOD.replace("Why this patch exists.\n\n", ""), "no paragraph that says why"),
    "no trailers": ("Change a thing\n\nWhy.\n", "no trailers"),
    "no test": (GOOD.replace("Test: test/unit/test_x.py\n", ""), "no Test: trailer"),
    "no drop": (GOOD.replace("Drop-When: upstream does it\n", ""), "no Drop-When: trailer"),
    "no id": (GOOD.replace("Patch-Id: x\n", ""), "no Patch-Id: trailer"),
    "bad id": (GOOD.replace("Patch-Id: x", "Patch-Id: ../x"), "Patch-Id: '../x'"),
    "two ids": (GOOD + "Patch-Id: y\n", "Patch-Id: given twice"),
    "bad status": (GOOD.replace("Pending", "Soon"), "Upstream-Status: 'Soon'"),
    "no reason": (GOOD.replace("Pending", "Inappropriate"), "Upstream-Status: 'Inappropriate'"),
    "unknown": (GOOD + "Signed-off-by: me\n", "unknown trailer Signed-off-by:"),
    "cut": (GOOD.replace("Why", "--- why"), "git am would cut the message at: '--- why"),
    "diff": (GOOD.replace("Why", "diff -u why"), "git am would cut"),
    "index": (GOOD.replace("Why", "Index: why"), "git am would cut"),
    "non-ASCII": (GOOD.replace("thing", "th\u00efng"), "not printable ASCII"),
    "long": (GOOD.replace("a thing", "a thing " * 12), "1 to 72 characters"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_header_lint(fork: Fork, fault: str) -> None:
    message, match = FAULTS[fault]
    assert any(match in said for said in header.lint(message))
    fork.apply()
    fork.edit(MODEL, "y = x", "y = 2 * x")
    fork.git.run("add", "--all")
    fork.git.run("commit", "--quiet", "--cleanup=verbatim", "-F", "-", input=message.encode())
    refused(fork, "its header does not pass")


@pytest.mark.parametrize(
    "status", ["Submitted [#12]", "Inappropriate [fork only]", "Backport [abc]", "Pending"]
)
def test_header_that_passes(status: str) -> None:
    assert header.lint(GOOD.replace("Pending", status)) == []


def test_folded_trailer_is_one_value() -> None:
    parsed = header.parse(GOOD.replace("upstream does it", "upstream does it\n  for all models"))
    assert parsed.one("Drop-When") == "upstream does it for all models"
    assert parsed.why == "Why this patch exists."


def test_patches_from_another_clone(fork: Fork, tmp_path: Path, git_user: Callable[..., None]) -> None:
    three_patches(fork)
    fork.export()
    other = tmp_path / "clone"
    git_user(tmp_path, "clone", "--quiet", str(fork.src), str(other))
    git_user(other, "checkout", "--quiet", "-b", "work", "upstream/1.0")
    text = (other / MODEL).read_text()
    (other / MODEL).write_text(text.replace("self.width = width", "self.width = int(width)"))
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.invalid")
    git_user(other, *identity, "commit", "-qam", f"Round the width\n{HEADER}cpu-width\n")
    (other / MODEL).write_text((other / MODEL).read_text().replace("z = math.sqrt(y)", "z = math.cbrt(y)"))
    git_user(other, *identity, "commit", "-qam", f"Take the cube root\n{HEADER}mega-root\n")
    done = export.import_commits(other, fork.root)
    names = (fork.patches / "series").read_text().split("\n")[2:-1]
    assert names == ["cpu-scale.patch", "cpu-width.patch", "mega-root.patch", "crlf.patch"]
    assert set(done.written) == {"cpu-width.patch", "mega-root.patch"}
    fork.apply()
    model = (fork.src / MODEL).read_text()
    assert "int(width)" in model and "y = 2 * x" in model and "cbrt(y)" in model
    assert fork.export().written == ()


def test_clone_of_something_else(fork: Fork, tmp_path: Path, git_user: Callable[..., None]) -> None:
    fork.apply()
    other = tmp_path / "stranger"
    other.mkdir()
    git_user(other, "init", "--quiet")
    Git(other).run("commit", "--quiet", "--allow-empty", "-m", "x")
    before = fork.snapshot()
    with pytest.raises(ForkError, match=r"does not hold commits on 1\.0's base"):
        export.import_commits(other, fork.root)
    assert fork.snapshot() == before
