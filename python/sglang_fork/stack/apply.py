# SPDX-License-Identifier: Apache-2.0
"""``apply``: base wheel, patches and the fork's own files become the patched tree in ``.sglang/src``.

The whole stack is built beside the tree and verified before the tree moves, so a failure changes nothing.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sglang_fork.errors import ForkError
from sglang_fork.paths import ROOT
from sglang_fork.stack import base, overlay, wheel, workspace
from sglang_fork.stack.git import Git
from sglang_fork.stack.platforms import Platform
from sglang_fork.stack.series import Series, patch_files, read_series

AM = (
    "am",
    "--quiet",
    "--keep-cr",
    "--keep-non-patch",
    "--no-scissors",
    "--whitespace=nowarn",
    "--committer-date-is-author-date",
)


@dataclass(frozen=True)
class AppliedTree:
    """The patched tree. ``tree_hash``: git tree id; ``platform``: whose base wheel ``wheel`` is."""

    path: Path
    tree_hash: str
    patch_count: int
    base_version: str
    platform: Platform | None
    patches: Path
    changed: bool

    @cached_property
    def wheel(self) -> Path:
        """The verified base wheel, fetched where it is missing; a build with nothing to do does not ask."""
        return wheel.fetch_base_wheel(self.platform, self.patches)


def apply_stack(
    platform: Platform | None = None, checkout: Path = ROOT, discard: bool = False
) -> AppliedTree:
    """Bring ``.sglang/src`` to base + patches + overlay; do nothing when it is there already.

    ``platform`` picks the base wheel (default: the running Python's). Work in the tree that was not exported
    is refused, or kept under ``refs/discarded/`` and dropped when ``discard`` is set. Raises ForkError on a
    wheel or base tree that is not the pinned one, a series that does not match the folder, a patch that does
    not apply exactly, and an overlay file at a path that upstream owns; the tree is then as it was.
    """
    patches = checkout / "patches"
    series = read_series(patches)
    files = patch_files(patches, series)
    with workspace.locked():
        git = workspace.repository()
        key = stamp_key(checkout, series, files)
        changed = not _is_current(git, key)
        if changed:
            workspace.finish_move(git)
            workspace.refuse_half_done(git)
            _refuse_pending(git, discard)
            commit_id = base_commit(git, wheel.fetch_base_wheel(platform, patches), series)
            with workspace.scratch() as scratch:
                tip = overlay.commit(git, checkout, build_commits(git, commit_id, files), scratch)
            _refuse_unknown(git, tip, discard)
            move_branch(git, tip)
            workspace.write_stamp(workspace.Stamp(key, commit_id, tip))
        tree = git.out("rev-parse", "HEAD^{tree}")
    return AppliedTree(git.path, tree, len(files), series.version, platform, patches, changed)


def stamp_key(checkout: Path, series: Series, files: list[Path]) -> str:
    """A digest of everything that determines the patched tree."""
    digest = hashlib.sha256(series.text().encode())
    for path in files:
        digest.update(f"{path.name}\0{wheel.sha256(path)}\n".encode())
    for root in overlay.ROOTS:
        for tree_path, path in overlay.files(checkout, root).items():
            digest.update(f"{tree_path}\0{wheel.sha256(path)}\n".encode())
    return digest.hexdigest()


def base_commit(git: Git, wheel_path: Path, series: Series) -> str:
    """The verified base commit, made from the wheel where the repository lacks it."""
    commit = base.vendor(git, wheel_path, series.version)
    base.verify_tree(git, commit, series.version, series.tree)
    return commit


def touched_paths(files: list[Path]) -> set[str]:
    """The paths named by the patches' diff headers."""
    pattern = re.compile(rb"^diff --git a/(.+) b/(.+)$", re.MULTILINE)
    found = set()
    for path in files:
        for match in pattern.finditer(path.read_bytes()):
            found |= {match[1].decode(), match[2].decode()}
    return found


def build_commits(git: Git, onto: str, files: list[Path], three_way: bool = False) -> str:
    """The commit that the patches make on ``onto``, applied exactly (``git am``) in a scratch work tree."""
    with workspace.sparse_worktree(git, onto, touched_paths(files)) as tree:
        for path in files:
            am(tree, path, three_way)
        return tree.out("rev-parse", "HEAD")


def am(tree: Git, path: Path, three_way: bool = False) -> None:
    """Apply one patch file as a commit, or raise a ForkError that names it and leave the tree as it was."""
    done = tree.run(*AM, *(["--3way"] if three_way else []), str(path), check=False)
    if done.returncode:
        said = [
            line for line in done.stderr.decode(errors="replace").splitlines() if line.startswith("error:")
        ]
        tree.run("am", "--abort", check=False)
        raise ForkError(
            f"patches/{path.name} does not apply to the tree before it:\n  "
            + "\n  ".join(said or ["not a patch"]),
            "the patch or one before it was changed; restore it, or re-make it with export",
        )


def move_branch(git: Git, commit: str) -> None:
    """Point ``mega`` and its work tree at ``commit``; only files that differ are written.

    The tree holds no work by now. A note of the move lets the next run finish one that was interrupted.
    """
    with workspace.moving(commit):
        git.run("checkout", "--quiet", "--force", "-B", workspace.BRANCH, commit)


def _is_current(git: Git, key: str) -> bool:
    stamp = workspace.read_stamp()
    return (
        stamp is not None
        and stamp.key == key
        and git.resolve("HEAD") == stamp.commit
        and not workspace.pending_work(git)
    )


def _refuse_pending(git: Git, discard: bool) -> None:
    work = workspace.pending_work(git)
    if not work:
        return
    if not discard:
        shown = "\n  ".join(work[:10] + ([f"... and {len(work) - 10} more"] if len(work) > 10 else []))
        raise ForkError(
            f"{git.path} holds work that was not exported:\n  {shown}",
            "keep it with ./sglang.sh export, or drop it with ./sglang.sh apply --discard",
        )
    _keep_discarded(git)


def _refuse_unknown(git: Git, tip: str, discard: bool) -> None:
    """Without a stamp nobody knows what the tree's commits are: only the very tip about to be written may be
    replaced.
    """
    if workspace.read_stamp() is not None or git.resolve("HEAD") in (None, tip):
        return
    if not discard:
        raise ForkError(
            f"{git.path} holds commits of unknown origin (its stamp is missing)",
            "look at them with git log; drop them with ./sglang.sh apply --discard",
        )
    _keep_discarded(git)


def _keep_discarded(git: Git) -> None:
    git.run("add", "--all")
    kept = git.commit_tree(git.out("write-tree"), "Work dropped by apply --discard\n", git.resolve("HEAD"))
    git.run("update-ref", f"refs/discarded/{kept[:12]}", kept)
    git.run("reset", "--quiet", "--hard", "HEAD")
