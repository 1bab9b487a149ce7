# SPDX-License-Identifier: Apache-2.0
"""The base to move to: a release, from its wheel, or a commit of upstream's git repository."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sglang_fork.errors import ForkError
from sglang_fork.stack import base, overlay, pip, wheel
from sglang_fork.stack.git import Git
from sglang_fork.stack.platforms import native_platform

NEWEST = "newest"


@dataclass(frozen=True)
class Target:
    """``label`` names the base, ``commit`` is it in the patched tree's repository; ``release``: it has
    wheels.
    """

    label: str
    commit: str
    release: bool


def of_release(git: Git, version: str) -> Target:
    """A release's base commit, made from its wheel for this machine; ``newest`` asks the index which."""
    version = pip.newest_release() if version == NEWEST else version
    commit = git.resolve(f"{base.tag(version)}^{{commit}}")
    if commit is None:
        commit = base.vendor(git, wheel.fetch_release(native_platform(), version), version)
    return Target(version, commit, True)


def of_git(git: Git, source: str, checkout: Path) -> Target:
    """The base commit of ``URL@REF``: ``python/sglang`` of that commit at ``sglang``, modes normalised as in
    a wheel.
    """
    url, at, ref = source.rpartition("@")
    if not at or not url or not ref or ":" in ref:
        raise ForkError(f"not URL@REF: {source}", "give a repository and a branch, tag or commit: URL@main")
    git.fetch(url, ref)
    head = git.out("rev-parse", "FETCH_HEAD^{commit}")
    if git.resolve(f"{head}:python/sglang") is None:
        raise ForkError(f"{source} has no python/sglang", "name a repository in SGLang's layout")
    refuse_kernel_collisions(git, head, checkout)
    label = f"git-{head[:12]}"
    staging = Git(git.path, index=git.path / ".git" / "from-git.index")
    staging.run("read-tree", "--empty")
    entries = _entries(git, f"{head}:python/sglang")
    staging.run("update-index", "-z", "--index-info", input=entries.encode())
    commit = git.commit_tree(
        staging.out("write-tree"), f"upstream sglang {head}\n", None, ("upstream", "upstream@example.invalid")
    )
    git.run("tag", "--force", base.tag(label), commit)
    return Target(label, commit, False)


def _entries(git: Git, folder: str) -> str:
    """``update-index`` input that lays a folder's files at ``sglang``: no submodules, no executable bits."""
    out = []
    for line in git.nul("ls-tree", "-r", "-z", folder):
        meta, path = line.split("\t", 1)
        mode, kind, blob = meta.split()
        if kind == "blob":
            out.append(f"{mode.replace('100755', '100644')} {blob}\tsglang/{path}\0")
    return "".join(out)


def refuse_kernel_collisions(git: Git, head: str, checkout: Path) -> None:
    """Refuse an added kernel file at a path that upstream's ``sgl-kernel`` owns in git."""
    if git.resolve(f"{head}:sgl-kernel") is None:
        return
    theirs = set(git.nul("ls-tree", "-r", "-z", "--name-only", f"{head}:sgl-kernel"))
    kernels = next(root for root in overlay.ROOTS if root.checkout == "sgl-kernel")
    ours = {path.removeprefix(f"{kernels.tree}/") for path in overlay.files(checkout, kernels)}
    clashes = sorted(f"sgl-kernel/{path}" for path in ours & theirs)
    if clashes:
        raise ForkError(f"upstream owns the path of: {', '.join(clashes)}", "rename the added file")
