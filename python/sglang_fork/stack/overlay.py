# SPDX-License-Identifier: Apache-2.0
"""The files that the fork adds: where they lie in the checkout and where in the patched tree.

``python/sglang/**`` lies at ``sglang/**``; ``sgl-kernel/**`` lies inside the package at
``sglang/srt/mega/_src/**``. A path that upstream owns is never an overlay file: such an edit is a patch.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from sglang_fork.errors import ForkError
from sglang_fork.stack.git import Git


@dataclass(frozen=True)
class Root:
    """One overlay folder: ``checkout`` and ``tree`` are POSIX prefixes without a trailing slash."""

    checkout: str
    tree: str
    message: str


ROOTS = (
    Root("python/sglang", "sglang", "Add the fork's Python files"),
    Root("sgl-kernel", "sglang/srt/mega/_src", "Add the fork's kernel sources"),
)

_SKIP_FOLDERS = {"__pycache__"}
_SKIP_SUFFIXES = (".pyc", ".so", ".o", ".orig", ".rej", "~")


def files(checkout: Path, root: Root) -> dict[str, Path]:
    """Tree path to file for everything under one overlay folder, sorted by tree path."""
    found = {}
    top = checkout / root.checkout
    for folder, folders, names in os.walk(top):
        folders[:] = [f for f in folders if f not in _SKIP_FOLDERS and not f.startswith(".")]
        for name in names:
            if not name.endswith(_SKIP_SUFFIXES) and not name.startswith("."):
                path = Path(folder, name)
                found[f"{root.tree}/{path.relative_to(top).as_posix()}"] = path
    return dict(sorted(found.items()))


def checkout_path(tree_path: str) -> str:
    """Where a file of the patched tree that upstream does not own lies in the checkout."""
    for root in reversed(ROOTS):
        if tree_path.startswith(root.tree + "/"):
            return f"{root.checkout}/{tree_path[len(root.tree) + 1 :]}"
    raise ForkError(f"{tree_path} is outside the sglang package", "the fork adds files under sglang/ only")


def owned(git: Git, commit: str) -> frozenset[str]:
    """All file paths of a commit's tree."""
    return frozenset(git.nul("ls-tree", "-r", "-z", "--name-only", commit))


def refuse_collisions(checkout: Path, upstream: frozenset[str]) -> None:
    """Refuse an overlay file at a path that upstream owns, or whose folder is a file there or the reverse."""
    folders = {"/".join(p.split("/")[:n]) for p in upstream for n in range(1, p.count("/") + 1)}
    clashes = []
    for root in ROOTS:
        for tree_path, path in files(checkout, root).items():
            parents = {"/".join(tree_path.split("/")[:n]) for n in range(1, tree_path.count("/") + 1)}
            if tree_path in upstream or tree_path in folders or parents & upstream:
                clashes.append(path.relative_to(checkout).as_posix())
    if clashes:
        raise ForkError(
            f"upstream owns the path of: {', '.join(clashes)}",
            "an edit of an upstream file is a patch: move it into patches/, or rename the added file",
        )


def blobs(git: Git, checkout: Path, root: Root) -> dict[str, str]:
    """Tree path to blob id, the blobs written into the repository."""
    found = files(checkout, root)
    if not found:
        return {}
    listing = "".join(f"{path}\n" for path in found.values()).encode()
    ids = git.out("hash-object", "-w", "--no-filters", "--stdin-paths", input=listing).split("\n")
    return dict(zip(found, ids, strict=True))


def commit(git: Git, checkout: Path, parent: str, scratch: Path) -> str:
    """Commit the overlay folders over ``parent``, one commit a folder that has files; returns the last
    commit.
    """
    upstream_files = owned(git, parent)
    refuse_collisions(checkout, upstream_files)
    staging = Git(git.path, index=scratch / "overlay.index")
    staging.run("read-tree", parent)
    for root in ROOTS:
        entries = blobs(git, checkout, root)
        if entries:
            feed = "".join(f"100644 {blob}\t{path}\0" for path, blob in entries.items()).encode()
            staging.run("update-index", "-z", "--add", "--index-info", input=feed)
            parent = git.commit_tree(staging.out("write-tree"), f"{root.message}\n", parent)
    return parent


def of_commit(git: Git, commit: str, upstream: frozenset[str]) -> dict[str, str]:
    """Tree path to blob id of every file of ``commit`` that upstream does not own."""
    entries = {}
    for line in git.nul("ls-tree", "-r", "-z", commit):
        meta, path = line.split("\t", 1)
        if path not in upstream:
            entries[path] = meta.split()[2]
    return entries
