# SPDX-License-Identifier: Apache-2.0
"""Bash completion: what bash offers at each place."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from sglang_fork import preset
from sglang_fork.paths import ROOT


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("state")
    (home / "run" / "my-run").mkdir(parents=True)
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "SGLANG_FORK_HOME": str(home)}
    done = subprocess.run(
        [str(ROOT / "sglang.sh"), "completion"], env=env, capture_output=True, text=True, check=True
    )
    path = home / "completion.bash"
    path.write_text(done.stdout)
    return path


def offered(script: Path, *words: str) -> list[str]:
    line = " ".join(f"'{word}'" for word in ("./sglang.sh", *words))
    command = (
        f"source {script}; COMP_WORDS=({line}); COMP_CWORD={len(words)}; _sglang_fork; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_commands_and_presets_come_first(script: Path) -> None:
    first = offered(script, "")
    assert set(preset.names()) <= set(first) and {"build", "demo", "stop", "help"} <= set(first)
    assert offered(script, "Kimi") == ["Kimi-K3"]


def test_a_presets_options_and_its_machines(script: Path) -> None:
    assert {"--dry-run", "--tiny", "--on", "--detach", "--"} <= set(offered(script, "Kimi-K3", ""))
    assert offered(script, "GLM-5.3-NVFP4", "--on", "") == ["h200", "h200-fp8"]
    assert offered(script, "Kimi-K3", "--on", "") == []


def test_a_commands_own_words(script: Path) -> None:
    assert offered(script, "build", "--skip-v") == ["--skip-venv"]
    assert offered(script, "stop", "my") == ["my-run"]
    assert offered(script, "show", "Mistral") == ["Mistral-Small-4-NVFP4"]
    assert "make" in offered(script, "checkpoint", "")
