# SPDX-License-Identifier: Apache-2.0
"""Workflows and hooks call commands and flags that exist, and the automation files cover paths that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sglang_fork.cli import Parser, command_names, load_command
from sglang_fork.paths import ROOT

FILES = [*sorted((ROOT / ".github" / "workflows").glob("*.yml")), ROOT / ".pre-commit-config.yaml"]
CALL = re.compile(r"\./sglang\.sh ([a-z-]+)((?: [\w./-]+)*)")


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_calls_parse(path: Path) -> None:
    calls = CALL.findall(path.read_text())
    assert calls
    for name, arguments in calls:
        assert name in command_names()
        module = load_command(name)
        parser = Parser(prog=name, allow_abbrev=False)
        module.add_arguments(parser)
        parser.parse(arguments.split())


def test_owned_paths_exist() -> None:
    lines = (ROOT / ".github" / "CODEOWNERS").read_text().splitlines()
    paths = [line.split()[0] for line in lines if line and not line.startswith("#")]
    assert len(paths) == len(set(paths))
    assert [path for path in paths if path != "*" and not (ROOT / path.strip("/")).is_dir()] == []


def test_hooks_use_the_locked_linters() -> None:
    locked = (ROOT / "python/sglang_fork/lock/dev.txt").read_text()
    wanted = re.findall(r'additional_dependencies: \["([^"]+)"\]', FILES[-1].read_text())
    assert len(wanted) == 3
    for requirement in wanted:
        assert re.search(rf"^{re.escape(requirement)} ", locked, re.MULTILINE), requirement
