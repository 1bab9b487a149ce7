# SPDX-License-Identifier: Apache-2.0
"""``auto`` never stops a start, ``on`` refuses with the same reasons, an assembled ISA needs an opt-in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sglang_fork import preset
from sglang_fork.errors import ForkError
from sglang_fork.launch import decide
from sglang_fork.paths import ROOT
from sglang_fork.resolve import FLAG, SLOTS, resolve

FINE = {"isa": "emulated", "spec": "Qwen3.5", "reasons": [], "error": None}
REFUSED = {
    "isa": "sm_90",
    "spec": None,
    "reasons": ["tp_size 1 is not one of [8]", "no peers"],
    "error": None,
}
BROKEN = {"isa": None, "spec": None, "reasons": [], "error": "ValueError: no such backend"}


def answering(monkeypatch: pytest.MonkeyPatch, answer: dict[str, object]) -> None:
    monkeypatch.setattr(decide, "ask", lambda *_: answer)


def decided(mode: str, name: str = "Qwen3.5-397B-NVFP4") -> decide.Decision:
    resolution = resolve(preset.load(name).on("h200"), {"MEGAKERNEL": mode})
    return decide.decide(resolution, Path("python"), {})


def test_auto_switches_on_without_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, FINE)
    decision = decided("auto")
    assert decision.on and decision.lines() == ["megakernel: on (Qwen3.5)"]
    final = resolve(preset.load("Qwen3.5-397B-NVFP4").on("h200"), {}).with_megakernel(True)
    assert FLAG in final.argv() and SLOTS in {v.name for v in final.variables}


@pytest.mark.parametrize("answer", [REFUSED, BROKEN], ids=["refused", "broken"])
@pytest.mark.parametrize("name", ["Qwen3.5-397B-NVFP4", "GLM-5.2-NVFP4", "DeepSeek-V4.1-Flash"])
def test_auto_runs_stock_with_every_reason_printed(
    name: str, answer: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, answer)
    decision = decided("auto", name)
    assert not decision.on
    text = "\n".join(decision.lines())
    for reason in answer["reasons"] or [answer["error"]]:
        assert reason in text


def test_on_refuses_with_the_same_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, REFUSED)
    with pytest.raises(ForkError) as caught:
        decided("on")
    assert all(reason in str(caught.value) for reason in REFUSED["reasons"])


def test_the_slot_list_is_part_of_the_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list that the spec refuses must be a reason here, not a server that stops at its start."""
    asked: list[dict[str, str]] = []
    monkeypatch.setattr(decide, "ask", lambda python, argv, environ: asked.append(environ) or FINE)
    decided("auto")
    assert asked == [{SLOTS: "route,mkm,gdn_verify,gdn_pdl,hop"}]


def test_off_asks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decide, "ask", lambda *_: pytest.fail("asked"))
    assert not decided("off").on


def test_an_assembled_isa_needs_an_explicit_opt_in() -> None:
    answer = {"isa": "sm_121", "spec": "x", "reasons": [], "error": None}
    (reason,) = decide.judge(answer, {})
    assert "assembled" in reason and "MEGAKERNEL_ASSEMBLED=1" in reason
    assert decide.judge(answer, {"MEGAKERNEL_ASSEMBLED": "1"}) == []
    assert decide.judge(FINE, {}) == []


def test_an_unknown_isa_counts_as_assembled() -> None:
    assert decide.status("sm_777") == "assembled"


def test_every_status_is_one_of_three_and_cites_evidence_that_exists() -> None:
    for isa, entry in json.loads(decide.STATUS.read_text()).items():
        assert entry["status"] in ("ran", "emulator", "assembled"), isa
        if entry["status"] != "assembled":
            assert (ROOT / entry["evidence"].split(":")[0]).is_file(), f"{isa}: {entry['evidence']}"


def test_a_probe_that_fails_is_an_answer(tmp_path: Path) -> None:
    assert "probe failed" in str(decide.ask(tmp_path / "no-python", [], {})["error"])
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho noise\necho 'ImportError: torch' >&2\nexit 3\n")
    python.chmod(0o755)
    answer = decide.ask(python, [], {})
    assert "ended with 3" in str(answer["error"]) and "ImportError: torch" in str(answer["error"])
    assert decide.judge(answer, {}), "auto then runs stock"


def test_the_answer_is_the_last_line(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "a log line"\necho \'{"isa": "emulated", "reasons": []}\'\n')
    python.chmod(0o755)
    assert decide.judge(decide.ask(python, [], {}), {}) == []
