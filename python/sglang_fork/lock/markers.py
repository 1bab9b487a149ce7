# SPDX-License-Identifier: Apache-2.0
"""Evaluates the environment markers of a lock for a machine that may not be this one (PEP 508, the part that
uv writes).
"""

from __future__ import annotations

import ast
import re

from sglang_fork.errors import ForkError


def target_environment(python: str, machine: str) -> dict[str, str]:
    """The marker variables of CPython ``python`` (``3.12``) on Linux ``machine`` (``aarch64``)."""
    return {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "platform_machine": machine,
        "platform_system": "Linux",
        "sys_platform": "linux",
        "os_name": "posix",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }


def holds(marker: str, environment: dict[str, str]) -> bool:
    """Whether a marker holds there; an empty marker always does. A ForkError for what is not understood."""
    if not marker:
        return True
    try:
        return _evaluate(ast.parse(marker.strip(), mode="eval").body, environment)
    except (SyntaxError, KeyError, ValueError) as problem:
        raise ForkError(f"the lock holds a marker that is not understood: {marker} ({problem})") from None


def _evaluate(node: ast.expr, environment: dict[str, str]) -> bool:
    if isinstance(node, ast.BoolOp):
        values = (_evaluate(value, environment) for value in node.values)
        return all(values) if isinstance(node.op, ast.And) else any(values)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right = _operand(node.left, environment), _operand(node.comparators[0], environment)
        version = any(isinstance(n, ast.Name) and "version" in n.id for n in (node.left, node.comparators[0]))
        return _compare(left, node.ops[0], right, version)
    raise ValueError("neither a comparison nor and/or")


def _operand(node: ast.expr, environment: dict[str, str]) -> str:
    if isinstance(node, ast.Name):
        return environment[node.id]
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise ValueError("neither a variable nor a string")


def _compare(left: str, op: ast.cmpop, right: str, version: bool) -> bool:
    if isinstance(op, ast.In):
        return left in right
    if isinstance(op, ast.NotIn):
        return left not in right
    if version and right.endswith(".*") and isinstance(op, (ast.Eq, ast.NotEq)):
        return f"{left}.".startswith(right[:-1]) == isinstance(op, ast.Eq)
    if not version:
        if isinstance(op, ast.Eq):
            return left == right
        if isinstance(op, ast.NotEq):
            return left != right
        raise ValueError("an order of names")
    a, b = _numbers(left), _numbers(right)
    for kind, result in (
        (ast.Eq, a == b),
        (ast.NotEq, a != b),
        (ast.Lt, a < b),
        (ast.LtE, a <= b),
        (ast.Gt, a > b),
        (ast.GtE, a >= b),
    ):
        if isinstance(op, kind):
            return result
    raise ValueError("an unknown operator")


def _numbers(version: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d+(\.\d+)*", version):
        raise ValueError(f"not a plain version: {version}")
    return tuple([*map(int, version.split(".")), 0, 0][:3])
