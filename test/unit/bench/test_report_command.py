# SPDX-License-Identifier: Apache-2.0
"""The report tells results from plumbing and judges by the bad end; the command refuses what it cannot
measure.
"""

import importlib.util
from pathlib import Path

import pytest

from sglang_fork import cli
from sglang_fork.bench import record, report, step
from sglang_fork.bench.job import read_jobs, write_jobs
from sglang_fork.commands import bench
from sglang_fork.errors import ForkError

_spec = importlib.util.spec_from_file_location("lines", Path(__file__).with_name("test_record_stats.py"))
_lines = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_lines)
line = _lines.line


def mega(low, median, high, **changes):
    return line(
        arm="mega",
        layers_ci_low_us=low,
        layers_median_us=median,
        layers_ci_high_us=high,
        slots="layers",
        **changes,
    )


def test_the_table_states_ratio_and_worst_ratio():
    text = report.render([line(), mega(840, 850, 860)])
    assert "2.00x (at worst 1.97x)" in text
    assert "1700" in text and "24.5" in text and "NVIDIA H200" in text


def test_a_later_run_supersedes_and_unlike_cases_are_not_compared():
    kept = report.latest([line(median_us=2005.0), line()])
    assert [m.median_us for m in kept] == [2000.0]
    with pytest.raises(ForkError, match="unlike cases"):
        report.verdict(line(), mega(1, 2, 3, rows=8))


def test_plumbing_is_listed_apart():
    text = report.render([line(card="plumbing: cpu")])
    assert "No measurement on a GPU yet" in text and "Plumbing" in text


def test_the_largest_sinks_are_named():
    kernels = {"gemm": [2.0, 50.0], "norm": [1.0, 5.0], "moe": [2.0, 90.0], "topk": [1.0, 9.0]}
    assert [name for name, _, _ in report.sinks(line(kernels=kernels))] == ["moe", "gemm", "topk"]


def test_plots_are_written_and_nothing_is_not_plotted(tmp_path):
    pytest.importorskip("matplotlib")
    kernels = {"moe": [2.0, 90.0]}
    other = line(slice="whole", kernels=kernels)
    lines = [line(kernels=kernels), mega(840, 850, 860), other, line(rows=8, kernels=kernels)]
    written = report.plot(lines, tmp_path)
    assert len(written) == len(set(written)), "no plot is written over another"
    assert sorted(p.name.split("-qwen3_5-")[0] for p in written) == [
        *["fraction"] * 2,
        *["launches"] * 2,
        "slots",
        *["waterfall"] * 3,
    ]
    assert all(p.stat().st_size > 1000 for p in written)
    with pytest.raises(ForkError, match="nothing to plot"):
        report.plot([line(card="plumbing: cpu")], tmp_path)


def test_ablations_group_a_case_stock_first():
    whole = line(arm="mega", slots="")
    part, other = line(arm="mega", slots="moe"), line(arm="mega", slots="gdn")
    unlike = line(rows=8)
    assert report.ablations([part, whole, unlike, line(), other]) == [[line(), whole, other, part]]
    assert report.ablations([line(), whole]) == []


def arguments(*words):
    parser = cli.Parser(prog="bench")
    bench.add_arguments(parser)
    return parser.parse_args(["step", *words])


def test_a_job_of_the_397b_is_its_tp8_rank():
    job = bench.job_of(arguments("Qwen3.5-397B-NVFP4", "--mode", "verify", "--weights", "nvfp4"))
    assert (job.tp, job.width, job.layers, job.requests) == (8, 7, 24, (1, 8))
    assert job.server_args["enable_nvidia_megakernel"] is True
    text = bench.describe(job)
    assert "verify steps of 7, 56 rows" in text and "of 512 experts a layer" in text


def test_a_job_survives_its_file(tmp_path):
    job = bench.job_of(arguments("GLM-5.3-NVFP4", "--stock-only"))
    write_jobs(tmp_path / "jobs.json", [job, job])
    assert read_jobs(tmp_path / "jobs.json") == [job, job]
    assert (
        "enable_nvidia_megakernel" not in job.server_args and job.server_args["kv_cache_dtype"] == "fp8_e4m3"
    )


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        ("DeepSeek-V4.1-Flash", ("deepseek_v41", 4, "mxfp4", "fp8_e4m3", 4096)),
        ("Kimi-K3", ("kimi_k3", 8, "mxfp4", "bf16", 1024)),
        ("GLM-5.3-NVFP4", ("glm_moe_dsa", 8, "bf16", "fp8_e4m3", 4096)),
    ],
)
def test_each_family_has_its_own_baseline(preset, expected):
    job = bench.job_of(arguments(preset, "--stock-only"))
    assert (job.family, job.tp, job.weights, job.kv, job.context) == expected
    if job.weights == "mxfp4":
        assert job.server_args["moe_runner_backend"] == "marlin" and "Marlin" in job.note


def test_deepseek_verify_uses_its_own_draft(tmp_path):
    job = bench.job_of(arguments("DeepSeek-V4.1-Flash", "--mode", "verify", "--stock-only"))
    sent = step.server_arguments(job, tmp_path)
    assert (sent["speculative_algorithm"], sent["speculative_dspark_block_size"]) == ("DSPARK", 5)
    assert "speculative_num_draft_tokens" not in sent


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("NoSuchPreset",), "unknown preset"),
        (("Qwen3.5-397B-NVFP4", "--requests", "one"), "invalid literal"),
        (("Qwen3.5-397B-NVFP4", "--routing", "random"), "unknown routing random"),
        (("Qwen3.5-397B-NVFP4", "--mode", "verify", "--requests", "64"), "more than 64 rows"),
        (("Qwen3.5-397B-NVFP4", "--server-args", "{"), "bench step"),
        (("Qwen3.5-397B-NVFP4", "--layers", "7"), "multiple of 4"),
        (("Kimi-K3", "--mode", "verify"), "without a draft"),
    ],
)
def test_bad_input_is_one_error_with_exit_2(words, why):
    with pytest.raises(ForkError, match=why) as caught:
        bench.job_of(arguments(*words))
    assert caught.value.code == 2


def test_report_names_a_missing_file(tmp_path):
    assert cli.main(["bench", "report", str(tmp_path / "none.jsonl")]) == 2


def test_every_committed_result_is_a_valid_line():
    for path in sorted(bench.RESULTS.glob("step*.jsonl")):
        assert list(record.load([path])), f"{path.name} holds no line"


def test_a_worker_without_its_arguments_says_how_it_is_used(capsys):
    assert step.main([]) == 2
    assert "JOBS.json OUT.jsonl" in capsys.readouterr().err
