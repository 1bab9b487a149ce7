# SPDX-License-Identifier: Apache-2.0
"""The checkout's shape: its top level, licence lines, and nothing of the machine that it was made on."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

TOP = {
    "sglang.sh",
    "patches",
    "python",
    "sgl-kernel",
    "docker",
    "test",
    "README.md",
    "LICENSE",
    "NOTICE",
    "CHANGELOG.md",
}
SOURCES = (".py", ".sh", ".cuh", ".cu", ".h", ".hpp", ".cc", ".cpp", ".c")


@pytest.fixture(scope="module")
def tracked() -> list[str]:
    root = Path(__file__).resolve().parents[3]
    listing = subprocess.run(["git", "-C", str(root), "ls-files", "-z"], capture_output=True, text=True)
    if listing.returncode:
        pytest.skip("not a git checkout: there is no list of tracked files")
    return [name for name in listing.stdout.split("\0") if name and (root / name).exists()]


def test_top_level(tracked: list[str]) -> None:
    assert {name.split("/")[0] for name in tracked if not name.startswith(".")} == TOP


def test_every_source_file_states_its_licence(tracked: list[str], checkout: Path) -> None:
    missing = []
    for name in tracked:
        if not name.endswith(SOURCES):
            continue
        head = (checkout / name).read_text(errors="replace").splitlines()[:3]
        if head and not any("SPDX-License-Identifier: " in line for line in head):
            missing.append(name)
    assert missing == []


def test_nothing_names_a_machine_or_an_index(tracked: list[str], checkout: Path) -> None:
    # Written in pieces, so that this file does not match itself.
    wrong = re.compile(
        "/wo" + "rk/|/opt/" + r"dev\b|pypi\." + r"org|files\.python" + r"hosted|registry\.npm" + "js"
    )
    found = []
    for name in tracked:
        content = (checkout / name).read_bytes()
        if b"\0" not in content and wrong.search(content.decode(errors="replace")):
            found.append(name)
    assert found == []


def test_no_unfinished_work(tracked: list[str], checkout: Path) -> None:
    wrong = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")
    sources = [name for name in tracked if name.endswith(SOURCES)]
    found = [name for name in sources if wrong.search((checkout / name).read_text(errors="replace"))]
    assert found == []
