# SPDX-License-Identifier: Apache-2.0
"""The items of ``check``: each takes an applied stack and returns what is wrong, one text a fault."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

from sglang_fork.lock.check import check_lock, wheel_metadata
from sglang_fork.stack import export, header, hooks, overlay, pins, platforms, wheel, workspace
from sglang_fork.stack.git import Git
from sglang_fork.stack.series import Series


@dataclass(frozen=True)
class Stack:
    """A series applied in a scratch: ``commits`` are the patch commits in order, after ``base``."""

    git: Git
    checkout: Path
    series: Series
    files: tuple[Path, ...]
    wheel: Path
    base: str
    commits: tuple[str, ...]

    @property
    def tip(self) -> str:
        return self.commits[-1] if self.commits else self.base

    def pairs(self) -> list[tuple[Path, str, str]]:
        """Patch file, parent commit and commit, in order."""
        return list(zip(self.files, (self.base, *self.commits), self.commits, strict=False))

    def message(self, commit: str) -> str:
        return self.git.out("log", "-1", "--format=%B", commit)

    def changes(self, parent: str, commit: str) -> list[tuple[str, str, bool]]:
        """Status letter, path and whether the mode changed, for every file of a commit."""
        fields = self.git.nul("diff-tree", "-r", "-z", "--no-renames", "--no-commit-id", parent, commit)
        out = []
        for meta, path in zip(fields[::2], fields[1::2], strict=True):
            old, new, _, _, status = meta.removeprefix(":").split()
            out.append((status, path, status == "M" and old != new))
        return out


def in_headers(stack: Stack) -> list[str]:
    """Header lint, file names that are not the Patch-Id, and tests that do not exist."""
    found = []
    for path, _, commit in stack.pairs():
        message = stack.message(commit)
        parsed = header.parse(message)
        texts = header.lint(message)
        if parsed.patch_id and f"{parsed.patch_id}.patch" != path.name:
            texts.append(f"Patch-Id is {parsed.patch_id}")
        texts += [text for test in parsed.all("Test") for text in in_test(stack.checkout, test)]
        found += [f"{path.name}: {text}" for text in texts]
    return found


def in_test(checkout: Path, test: str) -> list[str]:
    """Whether a ``Test:`` value exists: a path in the checkout, or ``path::name[::name]`` in a file."""
    path, *names = test.split("::")
    target = checkout / path
    if not target.exists():
        return [f"Test: {path} does not exist"]
    scope: ast.AST = ast.parse(target.read_text()) if names else ast.Module([], [])
    for name in names:
        inside = [n for n in ast.iter_child_nodes(scope) if getattr(n, "name", None) == name.split("[")[0]]
        if not inside:
            return [f"Test: {path} has no {'::'.join(names)}"]
        scope = inside[-1]
    return []


def in_export(stack: Stack) -> list[str]:
    """Patch files that export would write otherwise."""
    with workspace.scratch() as scratch:
        _, patches = export.canonical(stack.git, stack.base, stack.tip, scratch)
    return [
        f"{path.name} is not what export writes; run ./sglang.sh apply, then ./sglang.sh export"
        for path in stack.files
        if patches.get(path.name) != path.read_bytes()
    ]


def in_paths(stack: Stack) -> list[str]:
    """Patches that add files or change modes."""
    found = []
    for path, parent, commit in stack.pairs():
        for status, name, mode_changed in stack.changes(parent, commit):
            if status == "A":
                found.append(f"{path.name} adds {name}, which belongs under python/sglang or sgl-kernel")
            elif mode_changed:
                found.append(f"{path.name} changes the mode of {name}")
    return found


def in_overlay(stack: Stack) -> list[str]:
    """Added files at upstream's paths (raised as one ForkError)."""
    overlay.refuse_collisions(stack.checkout, overlay.owned(stack.git, stack.base))
    return []


def in_syntax(stack: Stack) -> list[str]:
    """Syntax errors in the touched files after each patch, and in the added Python files."""
    sources: list[tuple[str, bytes]] = []
    for path, parent, commit in stack.pairs():
        for _, name, _ in stack.changes(parent, commit):
            content = stack.git.show(commit, name)
            if name.endswith(".py") and content is not None:
                sources.append((f"{path.name}: {name}", content))
    for root in overlay.ROOTS:
        for path in overlay.files(stack.checkout, root).values():
            if path.suffix == ".py":
                sources.append((path.relative_to(stack.checkout).as_posix(), path.read_bytes()))
    return [text for name, content in sources for text in _syntax(name, content)]


def _syntax(name: str, content: bytes) -> list[str]:
    try:
        compile(content, name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return [f"{name}: line {getattr(error, 'lineno', '?')}: {error}"]
    return []


def in_hooks(stack: Stack) -> list[str]:
    """Patches whose lines are not in the functions that their ``Hook:`` trailers declare, or the reverse."""
    found = []
    for path, parent, commit in stack.pairs():
        says = set(header.parse(stack.message(commit)).all("Hook"))
        sits = set(hooks.edited(stack.git, parent, commit))
        found += [f"{path.name} edits {p}, which its header does not declare" for p in sorted(sits - says)]
        found += [f"{path.name} declares {p} and does not edit it" for p in sorted(says - sits)]
    return found


def in_pins(stack: Stack) -> list[str]:
    """Pins that do not hold against the base."""
    keys = pins.declared(stack.checkout)
    signed = pins.read_pins(stack.checkout / "patches")
    verdict = pins.judge(keys, signed, pins.Upstream(stack.git, stack.base))
    found = [f"upstream changed {key}, used by {', '.join(keys[key])}" for key in verdict.changed]
    found += [f"upstream has no {key}, used by {', '.join(keys[key])}" for key in verdict.gone]
    found += [f"not signed off: {key}, used by {', '.join(keys[key])}" for key in verdict.unsigned]
    found += [f"no module declares {key} any more" for key in verdict.stale]
    return found


def in_sums(stack: Stack) -> list[str]:
    """Platforms without a wheel sum, and sums of other wheels."""
    sums = wheel.read_sums(stack.checkout / "patches")
    names = {p.wheel_name(stack.series.version) for p in platforms.ALL_PLATFORMS}
    found = [f"no sum for {name}" for name in sorted(names - sums.keys())]
    return found + [f"{name} is no wheel of the base" for name in sorted(sums.keys() - names)]


def in_lock(stack: Stack) -> list[str]:
    """What keeps the runtime lock from being the lock of this base."""
    return check_lock(wheel_metadata(stack.wheel), stack.checkout / "python/sglang_fork/lock")
