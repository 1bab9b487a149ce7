# SPDX-License-Identifier: Apache-2.0
"""The status page is what its generator makes of the committed records; a claim falls with its record."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from sglang_fork.bench import status
from sglang_fork.launch import decide
from sglang_fork.paths import ROOT

MAKE = """
import sys
from pathlib import Path
from sglang_fork.bench import status
print(status.page(Path(sys.argv[1])), end="")
"""


def page(folder: Path) -> str:
    """Made in a process of its own: the generator takes the place of ``sglang`` there."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", MAKE, str(folder)],
        env={"PYTHONPATH": str(ROOT / "python")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def row(text: str, slot: str, rows: str) -> list[str]:
    """The cells of one slot and width, by architecture."""
    (found,) = [
        line for line in text.splitlines() if line.startswith(f"| `{slot}`") and line.split(" | ")[1] == rows
    ]
    return [each.strip() for each in found.split("|")[3:7]]


def records(slot_entries: tuple[str, ...], arch: str, **changes: object) -> list[dict]:
    made = [
        {
            "source": f"family/{entry}.cuh",
            "entry": entry,
            "constants": {},
            "arch": arch,
            "compiler": "nvrtc 13.0",
            "registers": 40 + i,
            "spill_bytes": 0,
            "shared_bytes": 0,
            "sass": {},
        }
        for i, entry in enumerate(slot_entries)
    ]
    return [record | changes for record in made]


def test_the_page_is_what_the_records_say() -> None:
    assert status.PAGE.read_text(encoding="utf-8") == page(status.RESULTS), "./sglang.sh bench status --write"


def test_no_record_no_claim(tmp_path: Path) -> None:
    text = page(tmp_path)
    for slot, rows in (("gdn", "1"), ("sparse_mla", "1 to 16"), ("mhc", "1 to 8"), ("q_norm", "1 to 16")):
        assert row(text, slot, rows) == ["", "", "", ""]


def test_a_run_counts_for_its_slots_rows_and_card_alone(tmp_path: Path) -> None:
    line = {"family": "qwen3_5", "arm": "mega", "card": "NVIDIA H200", "slots": "", "rows": 3}
    line |= {"date": "2030-01-02", "tree": "abc"}
    others = ({"arm": "stock"}, {"card": "another"}, {"slots": "moe", "rows": 8})
    (tmp_path / "step.jsonl").write_text("".join(json.dumps(line | o) + "\n" for o in ({}, *others)))
    text = page(tmp_path)
    assert row(text, "gdn", "3 to 4") == ["in SGLang (2030-01-02, abc) at 3 rows", "", "", ""]
    assert row(text, "gdn", "1")[0] == row(text, "gdn", "5 to 8")[0] == ""
    assert row(text, "moe", "5 to 8")[0] == "in SGLang (2030-01-02, abc) at 8 rows"
    assert row(text, "sparse_mla", "1 to 16")[0] == ""


def test_assembled_wants_every_entry_and_says_spills(tmp_path: Path) -> None:
    kernels = tmp_path / "kernels.json"
    both = records(("mla_decode", "mla_merge"), "sm_121a", spill_bytes=8)
    kernels.write_text(json.dumps(both[:1]))
    assert status.take(kernels, tmp_path, "2030-01-02", "abc") == 1
    assert row(page(tmp_path), "sparse_mla", "1 to 16")[3] == ""
    kernels.write_text(json.dumps(both))
    assert status.take(kernels, tmp_path, "2030-01-03", "abd") == 2, "a later record replaces an earlier one"
    text = page(tmp_path)
    assert row(text, "sparse_mla", "1 to 16") == ["", "", "", "assembled: 41 registers, spills 8 B"]
    assert "2030-01-03, tree abd, nvrtc 13.0" in text and "2030-01-02" not in text


def test_a_family_that_no_test_runs_in_sglang_has_no_such_claim(tmp_path: Path) -> None:
    kimi = page(tmp_path).split("## kimi_k3")[1]
    assert "e2e/mega/test_families.py" in kimi
    slot = SimpleNamespace(
        name="moe", entries=(), numerics=SimpleNamespace(test="test/e2e/mega/test_families.py")
    )
    assert status.emulated("kimi_k3", slot, {}) == "`e2e/mega/test_families.py`"
    assert status.emulated("another_family", slot, {}) == ""


def test_a_width_takes_the_form_that_serves_it(tmp_path: Path) -> None:
    kernels = tmp_path / "kernels.json"
    post = records(("mhc_post",), "sm_90a", constants={"ROWS": 16})
    kernels.write_text(json.dumps(post + records(("mhc_finish",), "sm_90a")))
    status.take(kernels, tmp_path, "2030-01-02", "abc")
    text = page(tmp_path)
    assert row(text, "mhc", "9 to 16")[0].startswith("assembled") and row(text, "mhc", "1 to 8")[0] == ""


@pytest.mark.parametrize(("isa", "arch"), [(arch[:-1], arch) for arch in status.ARCHITECTURES])
def test_what_the_launcher_engages_by_itself_has_run(isa: str, arch: str) -> None:
    """``isa_status.json`` says ``ran`` of an architecture exactly where a default slot ran in SGLang."""
    ran = any(r.inside for r in status.runs(status.RESULTS, "qwen3_5", ["moe"]) if r.arch == arch)
    assert (decide.status(isa) == "ran") == ran


def test_the_command_prints_it() -> None:
    command = [str(ROOT / "sglang.sh"), "bench", "status"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == page(status.RESULTS)
    missing = subprocess.run(
        [*command, "--kernels", "none.json"], capture_output=True, text=True, check=False
    )
    assert missing.returncode == 2 and "build --kernels writes it" in missing.stderr
