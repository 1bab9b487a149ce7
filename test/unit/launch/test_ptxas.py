# SPDX-License-Identifier: Apache-2.0
"""A ptxas that knows the GPU is found and named to Triton, or the start is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_fork.launch import ptxas
from sglang_fork.launch.ptxas import TRITON, choose

PACKAGES = Path("/packages")
OLD, NEW = frozenset({"sm_90", "sm_90a", "sm_100a"}), frozenset({"sm_90a", "sm_100a", "sm_121", "sm_121a"})
BUNDLED, TOOLKIT, MINE = PACKAGES / TRITON / "ptxas-blackwell", Path("/cuda/bin/ptxas"), Path("/mine/ptxas")
HOME = {"CUDA_HOME": "/cuda"}


def choice(known: dict[Path, frozenset[str]], environ: dict[str, str], isa: str = "sm_121") -> ptxas.Choice:
    return choose(PACKAGES, [isa], environ, ask=lambda path: known.get(path, frozenset()))


def test_tritons_own_is_used_where_it_knows_the_gpu() -> None:
    got = choice({BUNDLED: NEW, TOOLKIT: NEW}, HOME)
    assert got == ptxas.Choice({}, ())


def test_the_toolkits_is_named_to_triton_where_its_own_is_too_old() -> None:
    """From 10.0 up Triton reads another variable than TRITON_PTXAS_PATH."""
    got = choice({BUNDLED: OLD, TOOLKIT: NEW}, HOME)
    assert got == ptxas.Choice({"TRITON_PTXAS_BLACKWELL_PATH": "/cuda/bin/ptxas"}, ())
    hopper = choice({PACKAGES / TRITON / "ptxas": frozenset(), TOOLKIT: OLD}, HOME, "sm_90")
    assert hopper.variables == {"TRITON_PTXAS_PATH": "/cuda/bin/ptxas"}


def test_none_that_knows_the_gpu_is_a_refusal_with_the_way_out() -> None:
    got = choice({BUNDLED: OLD, TOOLKIT: OLD}, HOME)
    assert got.variables == {} and len(got.reasons) == 2
    assert "/cuda/bin/ptxas does not know sm_121a" in got.reasons[0] and "CUDA_HOME" in got.reasons[0]
    assert "TRITON_PTXAS_BLACKWELL_PATH" in got.reasons[1]


def test_the_users_own_choice_is_kept_or_refused_by_name() -> None:
    mine = HOME | {"TRITON_PTXAS_BLACKWELL_PATH": str(MINE)}
    assert choice({MINE: NEW, TOOLKIT: NEW}, mine) == ptxas.Choice({}, ())
    got = choice({MINE: OLD, TOOLKIT: NEW, BUNDLED: NEW}, mine)
    assert got.variables == {} and "TRITON_PTXAS_BLACKWELL_PATH=/mine/ptxas" in got.reasons[0]


def test_a_machine_without_gpus_asks_nothing() -> None:
    assert choose(None, [], {}, ask=lambda path: pytest.fail("asked")) == ptxas.Choice({}, ())


def test_a_ptxas_is_asked_for_what_it_knows(tmp_path: Path) -> None:
    tool = tmp_path / "ptxas"
    assert ptxas.architectures(tool) == frozenset()
    tool.write_text("#!/bin/sh\necho \"Allowed values: 'sm_90','sm_121a'.\"\n")
    tool.chmod(0o755)
    assert ptxas.architectures(tool) == {"sm_90", "sm_121a"}


def test_the_reasons_stop_the_launch(machine, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    from sglang_fork.errors import ForkError
    from sglang_fork.launch import preflight
    from sglang_fork.preset import load
    from sglang_fork.resolve import resolve

    resolution = resolve(load("Qwen3.5-35B-A3B"), {"QWEN35_MODEL": str(machine.model)})
    with pytest.raises(ForkError, match="no ptxas in reach"):
        preflight.check(resolution, "run", tiny=True, also=["no ptxas in reach knows sm_121a"])
