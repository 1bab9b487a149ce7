# SPDX-License-Identifier: Apache-2.0
"""``export``: the commits in ``.sglang/src`` become ``patches/`` again, byte for byte the same on every
machine.

Edits of upstream's files are patches, one commit each, named by ``Patch-Id``. Files that upstream does not
own go back to ``python/sglang`` and ``sgl-kernel``, whichever commit they came in, and never into a patch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sglang_fork.errors import ForkError
from sglang_fork.paths import ROOT
from sglang_fork.stack import apply, hooks, overlay, wheel, workspace
from sglang_fork.stack.git import Git
from sglang_fork.stack.header import require
from sglang_fork.stack.series import SERIES, Series, patch_files, read_series

_FORMAT = (
    "format-patch",
    "--stdout",
    "--zero-commit",
    "--no-signature",
    "--full-index",
    "--no-numbered",
    "-U3",
    "--diff-algorithm=myers",
    "--no-renames",
    "--no-stat",
    "-p",
    "--no-attach",
    "--no-thread",
    "--no-cover-letter",
    "--no-base",
    "--no-notes",
    "--no-signoff",
    "--src-prefix=a/",
    "--dst-prefix=b/",
    "--no-ext-diff",
    "--no-textconv",
    "--no-color",
)


@dataclass(frozen=True)
class Exported:
    """What changed: patch file names written and removed, checkout paths of overlay files written and
    removed.
    """

    written: tuple[str, ...]
    removed: tuple[str, ...]
    overlay: tuple[str, ...]
    count: int


def export_tree(checkout: Path = ROOT) -> Exported:
    """Write ``patches/`` and the overlay folders from ``.sglang/src``; nothing is written unless all of it
    can be.

    Raises ForkError on edits of upstream files that are not committed, a merge commit, a header that fails
    the lint, a Patch-Id used twice, an overlay file changed both in the tree and in the checkout, and a patch
    that would not apply.
    """
    series = read_series(checkout / "patches")
    with workspace.locked():
        git = workspace.repository()
        stamp = workspace.read_stamp()
        if git.resolve("HEAD") is None or stamp is None:
            raise ForkError(f"there is no patched tree in {git.path}", "make it: ./sglang.sh apply")
        workspace.refuse_half_done(git)
        upstream = overlay.owned(git, stamp.base)
        with workspace.scratch() as scratch:
            final = _final_tree(git, upstream, scratch)
            tip, patches = canonical(git, stamp.base, "HEAD", scratch)
            new_series = Series(series.version, series.tree, tuple(patches))
            verify(git, stamp.base, tip, patches, scratch)
            moves = _overlay_moves(git, checkout, stamp.commit, final, upstream)
            written, removed = write_patches(checkout / "patches", new_series, patches)
            _write_overlay(git, checkout, moves)
            tip = overlay.commit(git, checkout, tip, scratch)
        apply.move_branch(git, tip)
        key = apply.stamp_key(checkout, new_series, patch_files(checkout / "patches", new_series))
        workspace.write_stamp(workspace.Stamp(key, stamp.base, tip))
    return Exported(written, removed, tuple(overlay.checkout_path(p) for p in moves), len(patches))


def import_commits(source: Path, checkout: Path = ROOT) -> Exported:
    """Add the patches committed in another clone, or replace those of the same Patch-Id, and re-apply the
    series.

    ``source`` holds commits on the pinned base commit. A new patch goes after the last one of its group
    (``cpu-``, ``gb10-``, ``mega-``, then the rest). The patched tree itself is brought up to date by the next
    ``apply``.
    """
    series = read_series(checkout / "patches")
    files = patch_files(checkout / "patches", series)
    with workspace.locked(), workspace.scratch() as scratch:
        git = workspace.repository()
        onto = apply.base_commit(git, wheel.fetch_base_wheel(patches=checkout / "patches"), series)
        git.run("fetch", "--quiet", "--no-tags", str(source.resolve()), "HEAD")
        theirs = git.out("rev-parse", "FETCH_HEAD")
        if git.run("merge-base", "--is-ancestor", onto, theirs, check=False).returncode:
            raise ForkError(f"{source} does not hold commits on {series.version}'s base commit {onto[:12]}")
        _, patches = canonical(git, onto, theirs, scratch)
        contents = {p.name: p.read_bytes() for p in files} | patches
        names = list(series.names)
        for name in patches:
            if name not in names:
                names.insert(sum(group(n) <= group(name) for n in names), name)
        tip = _reapply(git, onto, {name: contents[name] for name in names}, scratch)
        tip, patches = canonical(git, onto, tip, scratch)
        verify(git, onto, tip, patches, scratch)
        new_series = Series(series.version, series.tree, tuple(patches))
        written, removed = write_patches(checkout / "patches", new_series, patches)
    return Exported(written, removed, (), len(patches))


def group(name: str) -> int:
    """A patch's place in the order of groups: CPU, GB10, the megakernel contract, then the model families."""
    prefixes = ("cpu-", "gb10-", "mega-")
    return next((i for i, prefix in enumerate(prefixes) if name.startswith(prefix)), len(prefixes))


def _reapply(git: Git, onto: str, contents: dict[str, bytes], scratch: Path) -> str:
    folder = scratch / "in"
    folder.mkdir()
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return apply.build_commits(git, onto, [folder / name for name in contents], three_way=True)


def canonical(git: Git, onto: str, head: str, scratch: Path) -> tuple[str, dict[str, bytes]]:
    """Rewrite ``onto..head`` as patch commits of fixed identity that edit upstream's files alone.

    Returns the last rewritten commit and the patch bytes by file name, in order.
    """
    upstream = overlay.owned(git, onto)
    staging = Git(git.path, index=scratch / "export.index")
    staging.run("read-tree", onto)
    tip, patches = onto, dict[str, bytes]()
    for commit in git.lines("rev-list", "--reverse", "--topo-order", f"{onto}..{head}"):
        short = git.out("log", "-1", "--format=%h %s", commit)
        if len(git.out("rev-list", "--parents", "-1", commit).split()) != 2:
            raise ForkError(f"commit {short} is a merge", "rebase the branch so that it is a straight line")
        entries = _upstream_entries(git, commit, upstream)
        if not entries:
            continue
        header = require(git.out("log", "-1", "--format=%B", commit), f"commit {short}")
        staging.run("update-index", "-z", "--add", "--index-info", input=entries)
        tree = staging.out("write-tree")
        if not header.all("Hook"):
            bare = git.commit_tree(tree, header.text(), tip)
            header = header.with_hooks(hooks.edited(git, tip, bare))
        tip = git.commit_tree(tree, header.text(), tip)
        name = f"{header.patch_id}.patch"
        if name in patches:
            raise ForkError(f"two commits have Patch-Id {header.patch_id}", "squash them, or name one anew")
        patches[name] = mail(git, tip)
    return tip, patches


def mail(git: Git, commit: str) -> bytes:
    """A commit as a patch file, independent of configuration and of its place in a series."""
    return git.run(*_FORMAT, "-1", commit).stdout


def _upstream_entries(git: Git, commit: str, upstream: frozenset[str]) -> bytes:
    """What a commit changed in upstream's files, as ``update-index --index-info`` input; modes normalised."""
    fields = git.nul("diff-tree", "-r", "-z", "--no-renames", "--no-commit-id", commit)
    entries = []
    for meta, path in zip(fields[::2], fields[1::2], strict=True):
        if path in upstream:
            blob, status = meta.split()[3:5]
            mode = "0" if status == "D" else "100644"
            entries.append(f"{mode} {blob}\t{path}\0")
    return "".join(entries).encode()


def verify(git: Git, onto: str, tip: str, patches: dict[str, bytes], scratch: Path) -> None:
    """Apply the patches exactly and compare the commit with ``tip``: what is written must reproduce what is
    there.
    """
    folder = scratch / "verify"
    folder.mkdir()
    for name, content in patches.items():
        (folder / name).write_bytes(content)
    made = apply.build_commits(git, onto, [folder / name for name in patches])
    if made != tip:
        raise ForkError(
            "the exported patches do not reproduce the commits they came from",
            f"compare them: git -C {git.path} range-diff {onto[:12]}..{made[:12]} {onto[:12]}..{tip[:12]}",
            code=1,
        )


def write_patches(
    folder: Path, series: Series, patches: dict[str, bytes]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Bring ``patches/`` to exactly these files; unchanged ones are not touched. Returns names written and
    removed.
    """
    written = []
    for name, content in patches.items():
        path = folder / name
        if not path.exists() or path.read_bytes() != content:
            path.write_bytes(content)
            written.append(name)
    removed = sorted(p.name for p in folder.glob("*.patch") if p.name not in patches)
    for name in removed:
        (folder / name).unlink()
    if (folder / SERIES).read_text() != series.text():
        series.write(folder)
    return tuple(written), tuple(removed)


def _final_tree(git: Git, upstream: frozenset[str], scratch: Path) -> str:
    """The tree id of the work tree: HEAD plus uncommitted overlay files; uncommitted edits of upstream's are
    refused.
    """
    dirty = [
        line[3:] for line in git.nul("status", "--porcelain", "-z", "--untracked-files=all", "--no-renames")
    ]
    mine = [path for path in dirty if path in upstream]
    if mine:
        raise ForkError(
            f"edits of upstream's files are not committed: {', '.join(mine)}",
            f"commit each patch with its header in {git.path}; see README.md, Following upstream",
        )
    if not dirty:
        return git.out("rev-parse", "HEAD^{tree}")
    staging = Git(git.path, index=scratch / "final.index")
    staging.run("read-tree", "HEAD")
    staging.run("add", "--all")
    return staging.out("write-tree")


def _overlay_moves(
    git: Git, checkout: Path, applied: str, final: str, upstream: frozenset[str]
) -> dict[str, str | None]:
    """Tree path to blob (None: delete) of the overlay files to bring back; both sides changed is refused."""
    before = overlay.of_commit(git, applied, upstream)
    after = overlay.of_commit(git, final, upstream)
    here = {p: blob for root in overlay.ROOTS for p, blob in overlay.blobs(git, checkout, root).items()}
    moves: dict[str, str | None] = {}
    clashes = []
    for path in sorted(before.keys() | after.keys()):
        now = after.get(path)
        if now == before.get(path) or now == here.get(path):
            continue
        if here.get(path) == before.get(path):
            moves[path] = now
        else:
            clashes.append(overlay.checkout_path(path))
    if clashes:
        raise ForkError(
            f"changed both in the patched tree and in the checkout: {', '.join(clashes)}",
            "make the two sides equal, then export again",
        )
    return moves


def _write_overlay(git: Git, checkout: Path, moves: dict[str, str | None]) -> None:
    for path, blob in moves.items():
        target = checkout / overlay.checkout_path(path)
        if blob is None:
            target.unlink()
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(git.run("cat-file", "blob", blob).stdout)
