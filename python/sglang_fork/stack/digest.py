# SPDX-License-Identifier: Apache-2.0
"""Digests of upstream code that change when its meaning may have, and not when its text alone has.

A digest is taken from the syntax tree without positions, comments, docstrings and annotations; it is the same
under every Python from 3.11 to 3.13.
"""

from __future__ import annotations

import ast
import hashlib
import json
from typing import Any

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

# Fields that carry no behaviour, or that exist in some Python versions only.
_IGNORED = {"returns", "type_comment", "type_params", "kind", "ctx"}


def find(module: ast.Module, dotted: str) -> Definition | None:
    """The definition that a dotted name reaches, through ``if`` and ``try``; the last one where there are
    several.
    """
    node: ast.AST = module
    for part in dotted.split("."):
        found = [d for d in _definitions(node) if d.name == part]
        if not found:
            return None
        node = found[-1]
    assert isinstance(node, Definition)
    return node


def _definitions(node: ast.AST) -> list[Definition]:
    found: list[Definition] = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Definition):
            found.append(child)
        elif isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            found += _definitions(child)
    return found


def of_body(node: ast.AST) -> str:
    """Digest of a whole definition: decorators, parameters, statements."""
    return _digest(_normal(node))


def of_signature(node: Definition) -> str | None:
    """Digest of a function's parameters: names, kinds, order, defaults. None for a class."""
    return None if isinstance(node, ast.ClassDef) else _digest(_normal(node.args))


def of_bases(node: Definition) -> str | None:
    """Digest of a class's bases and keywords. None for a function."""
    return _digest([_normal(node.bases), _normal(node.keywords)]) if isinstance(node, ast.ClassDef) else None


def of_files(files: dict[str, bytes]) -> str:
    """Digest of a folder: names, the normalised tree of Python files, the bytes of others."""
    parts = []
    for name, content in sorted(files.items()):
        if name.endswith(".py"):
            parts.append([name, of_body(ast.parse(content))])
        else:
            parts.append([name, hashlib.sha256(content).hexdigest()])
    return _digest(parts)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def _normal(node: Any) -> Any:
    """Nested lists of what counts."""
    if isinstance(node, list):
        return [_normal(item) for item in node]
    if not isinstance(node, ast.AST):
        return repr(node)
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        return ["Assign", "targets", [_normal(node.target)], "value", _normal(node.value)]
    out: list[Any] = [type(node).__name__]
    for field, value in ast.iter_fields(node):
        if field == "body" and isinstance(value, list):
            value = _without_docstring(value)
        elif isinstance(node, ast.JoinedStr):
            value = [part for part in value if not _is_empty_text(part)]
        if value is None or value == [] or field in _IGNORED:
            continue
        if field == "annotation" and isinstance(node, ast.arg):
            continue
        out += [field, _normal(value)]
    return out


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    match body:
        case [ast.Expr(value=ast.Constant(value=str())), *rest]:
            return rest
    return body


def _is_empty_text(part: ast.expr) -> bool:
    """Python 3.12 puts an empty constant after a nested replacement field of an f-string; others do not."""
    return isinstance(part, ast.Constant) and part.value == ""
