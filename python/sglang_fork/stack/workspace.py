# SPDX-License-Identifier: Apache-2.0
"""The patched tree's place on disk, its stamp, scratch work trees, and the lock that keeps two commands
apart.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from sglang_fork.errors import ForkError
from sglang_fork.paths import state_dir
from sglang_fork.stack.git import Git, init

BRANCH = "mega"


def source_dir() -> Path:
    """The patched tree: a git repository whose branch ``mega`` is base, patches, overlay."""
    return state_dir() / "src"


def repository() -> Git:
    """The patched tree's repository, made when absent."""
    return init(source_dir())


@dataclass(frozen=True)
class Stamp:
    """What ``apply`` or ``export`` last left: ``key`` digests its inputs; ``base`` and ``commit`` are commit
    ids.
    """

    key: str
    base: str
    commit: str


def _stamp_path() -> Path:
    return state_dir() / "applied.json"


def read_stamp() -> Stamp | None:
    """The last stamp; None when there is none that can be read."""
    try:
        return Stamp(**json.loads(_stamp_path().read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def write_stamp(stamp: Stamp) -> None:
    path = _stamp_path()
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(asdict(stamp), indent=1) + "\n")
    fresh.replace(path)


@contextmanager
def locked() -> Iterator[None]:
    """Hold the state folder: a second command that changes the patched tree is refused, not interleaved."""
    state_dir().mkdir(parents=True, exist_ok=True)
    with (state_dir() / "stack.lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ForkError(
                "another sglang.sh works on the patched tree", "wait until it has finished"
            ) from None
        yield


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder beside the patched tree that is gone afterwards, whatever happens."""
    state_dir().mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=state_dir(), prefix="scratch-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def sparse_worktree(git: Git, commit: str, paths: Iterable[str]) -> Iterator[Git]:
    """A detached work tree at ``commit`` in which only ``paths`` are on disk; enough for ``git am`` of
    patches on them.
    """
    with scratch() as folder:
        tree = Git(folder / "tree")
        git.run("worktree", "add", "--quiet", "--no-checkout", "--detach", str(tree.path), commit)
        try:
            tree.run("read-tree", commit)
            existing = [p for p in paths if tree.resolve(f"{commit}:{p}")]
            tree.run("checkout-index", "-z", "--stdin", input="".join(f"{p}\0" for p in existing).encode())
            yield tree
        finally:
            git.run("worktree", "remove", "--force", str(tree.path), check=False)
            git.run("worktree", "prune", check=False)


def _moving_path() -> Path:
    return state_dir() / "moving"


@contextmanager
def moving(commit: str) -> Iterator[None]:
    """Mark that the patched tree is on its way to ``commit``; the mark stays when the move does not end."""
    _moving_path().write_text(commit)
    yield
    _moving_path().unlink()


def finish_move(git: Git) -> None:
    """Finish a move of the patched tree that was interrupted: until its end the tree held nothing but old
    state.
    """
    if _moving_path().exists():
        commit = _moving_path().read_text()
        (git.path / ".git" / "index.lock").unlink(missing_ok=True)
        git.run("checkout", "--quiet", "--force", "-B", BRANCH, commit)
        git.run("clean", "--quiet", "-fd")
        stamp = read_stamp()
        write_stamp(Stamp("", stamp.base if stamp else commit, commit))
        _moving_path().unlink()


def refuse_half_done(git: Git) -> None:
    """Refuse to go on while git itself is in the middle of something in the patched tree."""
    folder = git.path / ".git"
    for name in ("rebase-merge", "rebase-apply", "MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD"):
        if (folder / name).exists():
            raise ForkError(
                f"git is in the middle of a {name.split('-')[0].split('_')[0].lower()} in {git.path}",
                "finish or abort it there first",
            )


def pending_work(git: Git) -> list[str]:
    """What the patched tree holds beyond its stamp: changed files and commits, one line each."""
    head = git.resolve("HEAD")
    if head is None:
        return []
    work = git.lines("status", "--porcelain", "--untracked-files=all")
    stamp = read_stamp()
    if stamp is None or stamp.commit == head or git.resolve(f"{stamp.commit}^{{commit}}") is None:
        return work
    return work + git.lines("log", "--format=commit %h %s", f"{stamp.commit}..HEAD")
