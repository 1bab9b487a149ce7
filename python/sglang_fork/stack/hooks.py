# SPDX-License-Identifier: Apache-2.0
"""Where a patch's lines sit: the functions that its hunks enter, read from the syntax tree of both sides.

A hunk that still applies after upstream moved code can land in another function without a conflict. Each
patch therefore declares its places (``Hook:`` trailers), and ``check`` compares them with where the lines
are.
"""

from __future__ import annotations

import ast
import re

from sglang_fork.errors import ForkError
from sglang_fork.stack.git import Git

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_DIFF = (
    "diff-tree",
    "-r",
    "-p",
    "-U0",
    "--no-renames",
    "--no-ext-diff",
    "--no-color",
    "--diff-algorithm=myers",
)


def edited(git: Git, parent: str, commit: str) -> list[str]:
    """``path::Qualified.name`` of every function or class, or ``path`` of module level, that the commit
    edits; sorted.
    """
    places = set()
    for path in git.nul("diff-tree", "-r", "-z", "--name-only", "--no-renames", parent, commit):
        diff = git.run(*_DIFF, parent, commit, "--", path).stdout.decode(errors="replace")
        names = _places(path, diff, git.show(parent, path), git.show(commit, path))
        places |= {f"{path}::{name}" if name else path for name in names}
    return sorted(places)


def _places(path: str, diff: str, before: bytes | None, after: bytes | None) -> set[str]:
    if not path.endswith(".py"):
        return {""}
    old, new = _Scopes(path, before), _Scopes(path, after)
    names: set[str] = set()
    for match in _HUNK.finditer(diff):
        a, a_count, b, b_count = (int(g) if g is not None else 1 for g in match.groups())
        names |= old.names(range(a, a + a_count)) | new.names(range(b, b + b_count))
    return names or {""}


class _Scopes:
    """Line number to the innermost enclosing definition of one file."""

    def __init__(self, path: str, source: bytes | None) -> None:
        self.lines = (source or b"").decode("utf-8", "replace").split("\n")
        self.spans: list[tuple[int, int, str]] = []
        try:
            self._collect(ast.parse(source or b""), "")
        except SyntaxError as error:
            raise ForkError(f"{path} does not compile: line {error.lineno}: {error.msg}") from None

    def _collect(self, node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{prefix}{child.name}"
                start = min([child.lineno, *(d.lineno for d in child.decorator_list)])
                self.spans.append((start, child.end_lineno or start, name))
                self._collect(child, f"{name}.")
            else:
                self._collect(child, prefix)

    def names(self, numbers: range) -> set[str]:
        """The scopes of those lines that hold code; ``""`` is module level."""
        return {self._innermost(n) for n in numbers if self._is_code(n)}

    def _is_code(self, number: int) -> bool:
        text = self.lines[number - 1].strip() if 0 < number <= len(self.lines) else ""
        return bool(text) and not text.startswith("#")

    def _innermost(self, number: int) -> str:
        inside = [span for span in self.spans if span[0] <= number <= span[1]]
        return min(inside, key=lambda span: span[1] - span[0])[2] if inside else ""
