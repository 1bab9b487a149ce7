# SPDX-License-Identifier: Apache-2.0
"""The scripts that wait for a GPU go through their plumbing without one, so that no run is lost to a typo."""

import math
import random
import subprocess
import sys
import time

import pytest

ARMS = {"marlin_nvfp4", "fp8_scaled_mm", "fp8_scaled_mm+quant", "torch._scaled_mm", "bf16", "bf16 triton"}


@pytest.fixture
def served(monkeypatch, checkout):
    monkeypatch.syspath_prepend(str(checkout / "test" / "gpu"))
    import nvfp4_served

    return nvfp4_served


def test_the_small_m_table_calls_every_arm_at_every_row_count(loaded):
    seen = loaded("gpu_bench")
    assert seen["code"] == 0
    lines = seen["lines"]
    assert {line["arm"] for line in lines} == ARMS and {line["m"] for line in lines} == {1, 7, 56}
    assert len(lines) == 3 * (5 + 2) and lines[0]["kind"] == "moe", "the experts come first"
    assert all(line["dry"] and "us" not in line and "of_copy" not in line for line in lines)


def test_every_served_arm_is_made_asked_and_compared(loaded, served):
    """SGLang's own ServerArgs and Engine.generate take what the script gives them."""
    seen = loaded("nvfp4_served")
    assert seen["code"] == 0
    arms = {line["arm"] for line in seen["lines"] if "arm" in line}
    assert arms == served.ARMS.keys() - {"damaged"}
    assert all(line["ok"] for line in seen["lines"] if "arm" in line)
    compared = {line["compared"] for line in seen["lines"] if "compared" in line}
    assert compared == {name for name, arm in served.ARMS.items() if arm.reference}
    assert all(line["dry"] for line in seen["lines"])


def said(base, noise, seed=0):
    draw = random.Random(seed)
    return {"tokens": [[1]] * 4, "logprobs": [[p + draw.gauss(0, noise) for p in row] for row in base]}


def test_an_arm_must_be_nearer_to_its_reference_than_quantisation_moves(served):
    draw = random.Random(1)
    base = [[-draw.random() for _ in range(47)] for _ in range(4)]
    seen = {"all_ref": said(base, 0), "exact": said(base, 1.0), "preset": said(base, 0.1, 2)}
    near = served.compare("preset", seen)
    assert near["ok"] and near["apart"] == pytest.approx(0.1, rel=0.2)
    assert not served.compare("preset", seen | {"preset": said(base, 0.9, 2)})["ok"]
    assert not served.compare("preset", seen | {"preset": said(base, math.nan)})["ok"]
    assert served.compare("preset", {"preset": near, "all_ref": near}) is None, "its yardstick has not spoken"


def test_what_became_of_an_arm(served, tmp_path):
    (tmp_path / "damaged.log").write_text("Nvfp4SelfTestError: NVFP4 layer x: its block scales hold E4M3 NaN")
    assert served.outcome("damaged", tmp_path, 1, 9.0)["ok"]
    (tmp_path / "damaged.log").write_text("OutOfMemoryError")
    assert not served.outcome("damaged", tmp_path, 1, 9.0)["ok"]
    (tmp_path / "gdn.log").write_text("TypeError: an unexpected keyword")
    assert "keyword" in served.outcome("gdn", tmp_path, 1, 9.0)["why"]
    assert served.outcome("gdn", tmp_path, None, 300.0)["why"] == "out of time"
    (tmp_path / "gdn.json").write_text("{}")
    assert served.outcome("gdn", tmp_path, None, 300.0)["ok"], "it spoke before its time was over"


def test_an_arms_process_is_this_script_with_that_arm(served, tmp_path):
    python, script, *words = served.command("mtp", tmp_path)
    assert (python, script) == (sys.executable, served.__file__)
    assert (served.parser().parse_args(words).serve, served.parser().parse_args(words).folder) == (
        "mtp",
        tmp_path,
    )


def test_an_arm_out_of_time_is_ended_with_what_it_started(served):
    inner = "import time; print(1, flush=True); time.sleep(60)"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    command = [sys.executable, "-c", outer]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout.readline() == b"1\n"
    started = time.monotonic()
    served.end([process])
    assert process.stdout.read() == b"", "the grandchild's end closes the pipe"
    assert time.monotonic() - started < 30
