# SPDX-License-Identifier: Apache-2.0
"""Digests of upstream code: what changes them, what does not, and that no Python version does."""

from __future__ import annotations

import ast

import pytest

from sglang_fork.stack import digest

CODE = '''\
@wrap(1)
def f(a, b: int = 2, *, c="x", **rest) -> int:
    """Says what f does."""
    total: int = a + b  # a comment
    text = f"{total:>{a}} of {c!r}" "and more"
    with open(text) as one, open(c) as two:
        match rest:
            case {"k": [x, *_]} if x:
                return x
    try:
        y = (lambda q, /: q)(0)
    except* ValueError:
        y = 1.5
    return [i for i in y] if (z := y) else total
'''


def of(source: str, kind: str = "body", name: str = "f") -> str | None:
    node = digest.find(ast.parse(source), name)
    assert node is not None
    return {"body": digest.of_body, "sig": digest.of_signature, "bases": digest.of_bases}[kind](node)


def test_digest_is_this_one_on_every_python() -> None:
    assert of(CODE) == "cd3916a25175ee64"
    assert of(CODE, "sig") == "5fae21edfd8f33e9"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  # a comment", ""),
        ('    """Says what f does."""\n', ""),
        ("total: int = a + b", "total = a + b"),
        (" -> int", ""),
        ("b: int = 2", "b=2"),
        ('c="x"', "c='x'"),
    ],
)
def test_text_that_does_not_count(old: str, new: str) -> None:
    assert old in CODE
    assert of(CODE.replace(old, new)) == of(CODE)


@pytest.mark.parametrize(
    ("old", "new", "signature_too"),
    [
        ("a + b", "b + a", False),
        ("@wrap(1)", "@wrap(2)", False),
        ("and more", "and less", False),
        ("b: int = 2", "b: int = 3", True),
        ("*, c=", "c=", True),
        ("**rest", "**others", True),
    ],
)
def test_change_that_counts(old: str, new: str, signature_too: bool) -> None:
    changed = CODE.replace(old, new)
    assert of(changed) != of(CODE)
    assert (of(changed, "sig") != of(CODE, "sig")) == signature_too


def test_bases_and_keywords() -> None:
    assert of("class f(A, B): x = 1", "bases") == of("class f(A, B): y = 2", "bases")
    assert of("class f(A, B): pass", "bases") != of("class f(B, A): pass", "bases")
    assert of("class f(A): pass", "bases") != of("class f(A, metaclass=M): pass", "bases")
    assert of("class f: pass", "sig") is None and of("def f(): pass", "bases") is None


def test_last_definition_wins_and_branches_are_searched() -> None:
    code = "if X:\n    def f(a): ...\nelse:\n    def f(b): ...\ntry:\n    pass\nexcept E:\n    def g(): ...\n"
    module = ast.parse(code)
    found = digest.find(module, "f")
    assert isinstance(found, ast.FunctionDef) and found.args.args[0].arg == "b"
    assert digest.find(module, "g") is not None
    assert digest.find(module, "f.inner") is None


def test_nested_name() -> None:
    module = ast.parse(
        "class A:\n    def f(self):\n        def g(): ...\n    class B:\n        def f(self, x): ...\n"
    )
    inner = digest.find(module, "A.B.f")
    assert isinstance(inner, ast.FunctionDef) and len(inner.args.args) == 2
    assert digest.find(module, "A.f.g") is not None and digest.find(module, "g") is None


def test_folder() -> None:
    files = {"a.py": b"x = 1\n", "b.json": b"{}"}
    assert digest.of_files(files) == digest.of_files(files | {"a.py": b"# c\nx = 1\n"})
    assert digest.of_files(files) != digest.of_files(files | {"a.py": b"x = 2\n"})
    assert digest.of_files(files) != digest.of_files(files | {"b.json": b"{} "})
    assert digest.of_files(files) != digest.of_files({"c.py": files["a.py"], "b.json": files["b.json"]})
