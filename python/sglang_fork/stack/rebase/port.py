# SPDX-License-Identifier: Apache-2.0
"""Moving one patch onto the new tree, and the verdict on it.

A patch that goes on without a word may still be wrong: it can land in another function. Its ``Hook`` trailers
tell.
"""

from __future__ import annotations

import re
from pathlib import Path

from sglang_fork.errors import ForkError
from sglang_fork.stack import hooks
from sglang_fork.stack.apply import AM
from sglang_fork.stack.git import Git
from sglang_fork.stack.header import Header, parse, require
from sglang_fork.stack.rebase.state import Outcome

CLEAN = "clean"
FUZZY = "fuzzy"
CONFLICT = "conflict"
UPSTREAM = "already upstream"
MISSING = "missing file"
MISPLACED = "misplaced"
SKIPPED = "left out"
BY_HAND = "by hand"

_MARKER = re.compile(rb"^(<{7}|>{7}) ", re.MULTILINE)

WAITS = (CONFLICT, MISSING, MISPLACED)


def port(tree: Git, patch: Path, old_base: str, new_base: str) -> Outcome:
    """Put one patch onto the tree's HEAD as a commit, and say how that went.

    ``clean``: applies exactly, moved lines aside. ``fuzzy``: only a three-way merge does it. ``already
    upstream``: nothing is left to change, no commit. ``missing file``: it edits files that the new base
    lacks, nothing was done. ``conflict``: git am waits for a resolution. ``misplaced``: committed, but not in
    the functions its header declares.
    """
    missing = [path for path in edited_paths(patch) if tree.resolve(f"HEAD:{path}") is None]
    if missing:
        hints = [f"{path}{_renamed(tree, path, old_base, new_base)}" for path in missing]
        return Outcome(patch.name, MISSING, f"the new base has no {', '.join(hints)}")
    head = tree.out("rev-parse", "HEAD")
    exact = tree.run("apply", "--check", "--whitespace=nowarn", str(patch), check=False).returncode == 0
    done = tree.run(*AM, *([] if exact else ["--3way"]), str(patch), check=False)
    if done.returncode:
        return Outcome(patch.name, CONFLICT, _conflict(tree, done.stderr + done.stdout))
    if tree.out("rev-parse", "HEAD") == head:
        return Outcome(patch.name, UPSTREAM, "nothing is left of it")
    return judge_commit(tree, patch.name, Outcome(patch.name, CLEAN if exact else FUZZY))


def judge_commit(tree: Git, name: str, verdict: Outcome) -> Outcome:
    """``verdict``, or ``misplaced`` when HEAD's lines are not where its header says."""
    declared = set(_header(tree).all("Hook"))
    sits = set(hooks.edited(tree, "HEAD^", "HEAD"))
    if declared == sits:
        return verdict
    strays = [f"edits {place}" for place in sorted(sits - declared)]
    strays += [f"no longer edits {place}" for place in sorted(declared - sits)]
    return Outcome(name, MISPLACED, "; ".join(strays))


def accept(tree: Git, stopped: Outcome, head: str) -> Outcome:
    """Take a person's resolution of ``stopped``: exactly one commit after ``head`` that carries the patch's
    name.
    """
    _finish_am(tree)
    count = int(tree.out("rev-list", "--count", f"{head}..HEAD"))
    if count != 1 or tree.resolve("HEAD^") != head:
        raise ForkError(
            f"{stopped.name} must be exactly one commit in {tree.path}, there are {count}",
            "commit it, squash it, or leave the patch out: ./sglang.sh rebase --skip",
        )
    if tree.lines("status", "--porcelain", "--untracked-files=no"):
        raise ForkError(f"{tree.path} has changes that are not committed", "git commit --amend takes them in")
    header = require(tree.out("log", "-1", "--format=%B", "HEAD"), stopped.name)
    if f"{header.patch_id}.patch" != stopped.name:
        raise ForkError(
            f"the commit's Patch-Id is {header.patch_id}, expected {stopped.name.removesuffix('.patch')}"
        )
    return judge_commit(tree, stopped.name, Outcome(stopped.name, BY_HAND, f"was: {stopped.verdict}"))


def drop(tree: Git, head: str) -> None:
    """Leave the waiting patch out: the tree is as before it."""
    tree.run("am", "--abort", check=False)
    tree.run("reset", "--quiet", "--hard", head)


def _finish_am(tree: Git) -> None:
    if not Path(tree.out("rev-parse", "--path-format=absolute", "--git-path", "rebase-apply")).exists():
        return
    unmerged = tree.lines("diff", "--name-only", "--diff-filter=U")
    if unmerged:
        raise ForkError(
            f"not resolved yet in {tree.path}: {', '.join(unmerged)}", "edit them, git add them, and continue"
        )
    staged = tree.nul("diff", "--cached", "--name-only", "-z", "HEAD")
    marked = [path for path in staged if _MARKER.search(tree.show("", path) or b"")]
    if marked:
        raise ForkError(
            f"conflict markers are left in: {', '.join(marked)}", "edit them, git add them, and continue"
        )
    done = tree.run("am", "--continue", check=False)
    if done.returncode:
        said = (done.stderr + done.stdout).decode(errors="replace").strip()
        raise ForkError(f"git am --continue: {said}", "leave the patch out with ./sglang.sh rebase --skip")


def edited_paths(patch: Path) -> list[str]:
    """The files that a patch expects to exist."""
    return [name.decode() for name in re.findall(rb"^--- a/(.+?)\r?$", patch.read_bytes(), re.MULTILINE)]


def _renamed(tree: Git, path: str, old_base: str, new_base: str) -> str:
    renames = ("diff-tree", "-r", "-z", "-M50%", "--diff-filter=R", "--name-status")
    fields = tree.nul(*renames, old_base, new_base)
    for status, old, new in zip(fields[::3], fields[1::3], fields[2::3], strict=True):
        if old == path:
            return f" (now {new}, {int(status[1:])} % alike)"
    return ""


def _conflict(tree: Git, said: bytes) -> str:
    files = tree.lines("diff", "--name-only", "--diff-filter=U")
    if files:
        return f"in {', '.join(files)}"
    errors = [line for line in said.decode(errors="replace").splitlines() if line.startswith("error:")]
    return "; ".join(errors) or "git am gives no reason"


def _header(tree: Git) -> Header:
    return parse(tree.out("log", "-1", "--format=%B", "HEAD"))
