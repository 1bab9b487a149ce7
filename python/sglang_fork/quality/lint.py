# SPDX-License-Identifier: Apache-2.0
"""Linters, formatter and type checker over the checkout, each run once and counted as one check."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Check:
    """One tool's run: ``command`` is empty where the tool is missing, and ``why`` then says so."""

    name: str
    command: tuple[str, ...]
    why: str = ""


def shell_scripts(root: Path) -> list[Path]:
    """The checkout's shell scripts: named ``*.sh``, or executable text that begins with a shell's name."""
    fixed = [root / "sglang.sh", root / ".ci" / "run"]
    found = [
        *fixed,
        *root.glob("docker/**/*.sh"),
        *root.glob("python/**/*.sh"),
        *root.glob(".github/**/*.sh"),
    ]
    return sorted({path for path in found if path.is_file()})


def checks(root: Path, bin_dir: Path) -> Iterator[Check]:
    """The checks of the checkout ``root`` with the tools in ``bin_dir``."""
    yield _tool(bin_dir, "ruff", "ruff check", "check", "--output-format", "concise", "--no-cache", ".")
    yield _tool(bin_dir, "ruff", "ruff format", "format", "--check", "--no-cache", ".")
    yield _tool(bin_dir, "mypy", "mypy")
    yield _tool(bin_dir, "shellcheck", "shellcheck", *map(str, shell_scripts(root)))
    dockerfiles = sorted(str(path) for path in (root / "docker").glob("*Dockerfile*"))
    if dockerfiles:
        yield _tool(bin_dir, "hadolint", "hadolint", *dockerfiles)


def run_check(check: Check, root: Path) -> bool:
    """Run one check in ``root`` and print its output when it fails; whether it passed."""
    done = subprocess.run(check.command, cwd=root, capture_output=True, text=True)
    if done.returncode:
        print(f"{check.name}: FAILED\n{done.stdout}{done.stderr}".rstrip(), flush=True)
    else:
        print(f"{check.name}: ok", flush=True)
    return done.returncode == 0


def _tool(bin_dir: Path, tool: str, name: str, *arguments: str) -> Check:
    path = bin_dir / tool
    if not path.exists():
        return Check(name, (), f"the package index has no {tool} for this machine")
    return Check(name, (str(path), *arguments))
