# SPDX-License-Identifier: Apache-2.0
"""``export --git``: the whole fork as one ``git am`` series for a checkout of upstream's repository.

In git, the package lies at ``python/sglang`` and kernel sources at ``sgl-kernel``. Blob ids are those of
upstream's files, so ``git am --3way`` finds its merge bases in a clone that has the base release's history.
Where upstream's files have moved on, ``rebase --from-git`` does better: it knows every patch's own merge
base.
"""

from __future__ import annotations

import re
from pathlib import Path

from sglang_fork.errors import ForkError
from sglang_fork.paths import ROOT
from sglang_fork.stack import check, export, overlay, workspace
from sglang_fork.stack.git import Git
from sglang_fork.stack.header import parse
from sglang_fork.stack.series import read_series

_OURS = re.compile(r"\d{4}-[a-z0-9._-]+\.patch")


def export_git(out: Path, checkout: Path = ROOT) -> list[Path]:
    """Write the series of a checkout into ``out``: patches, then the added files. Returns the files."""
    with workspace.locked():
        stack = check.build(checkout, read_series(checkout / "patches"))
        return write(stack.git, stack.base, stack.tip, checkout, out)


def write(git: Git, base: str, tip: str, checkout: Path, out: Path) -> list[Path]:
    """Write ``base..tip`` and the overlay of ``checkout`` as mails in upstream's layout."""
    stale = sorted(out.iterdir()) if out.exists() else []
    strangers = [path.name for path in stale if not _OURS.fullmatch(path.name)]
    if strangers:
        raise ForkError(f"{out} holds other files: {', '.join(strangers[:3])}", "name a new or empty folder")
    mails = []
    with workspace.scratch() as scratch:
        parent = git.commit_tree(_nested(git, base), "base\n", None)
        for commit in git.lines("rev-list", "--reverse", f"{base}..{tip}"):
            message = git.out("log", "-1", "--format=%B", commit)
            parent = git.commit_tree(_nested(git, commit), f"{message.strip()}\n", parent)
            mails.append((parse(message).patch_id or "patch", parent))
        staging = Git(git.path, index=scratch / "git-layout.index")
        staging.run("read-tree", parent)
        for root in overlay.ROOTS:
            entries = overlay.blobs(git, checkout, root)
            if entries:
                feed = [f"100644 {blob}\t{overlay.checkout_path(path)}\0" for path, blob in entries.items()]
                staging.run("update-index", "-z", "--add", "--index-info", input="".join(feed).encode())
                parent = git.commit_tree(staging.out("write-tree"), f"{root.message}\n", parent)
                mails.append((f"add-{root.checkout.replace('/', '-')}", parent))
    out.mkdir(parents=True, exist_ok=True)
    for path in stale:
        path.unlink()
    files = [out / f"{number:04}-{name}.patch" for number, (name, _) in enumerate(mails, 1)]
    for path, (_, commit) in zip(files, mails, strict=True):
        path.write_bytes(export.mail(git, commit))
    return files


def _nested(git: Git, commit: str) -> str:
    """The commit's tree below ``python/``."""
    tree = git.out("rev-parse", f"{commit}^{{tree}}")
    return git.out("mktree", input=f"040000 tree {tree}\tpython\n".encode())
