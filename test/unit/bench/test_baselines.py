# SPDX-License-Identifier: Apache-2.0
"""Every baseline is a valid job, runs within its limit, and keeps its lines when time runs out."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sglang_fork import cli
from sglang_fork.bench import baselines, precompile, record, stats
from sglang_fork.commands import bench
from sglang_fork.errors import ForkError


@pytest.mark.parametrize("one", baselines.BASELINES, ids=lambda one: one.name)
def test_each_is_jobs_of_one_slice_that_fit_a_lease(one):
    jobs = [bench.parsed_job(words) for words in one.steps]
    assert len({(job.family, job.weights, job.layers, job.tp) for job in jobs}) == 1, "weights load once"
    assert 100 <= one.limit_s <= 540
    for job in jobs:
        rank = job.slice()
        gigabytes = (rank.dense_bytes + 2 * rank.head_bytes) / 1e9
        gigabytes += rank.expert_bytes * rank.experts * rank.moe_layers / 1e9
        assert gigabytes < 125, "fits one H200 beside graphs and 65536 tokens of KV cache"


def test_the_four_that_the_readme_names_are_among_them():
    jobs = [bench.parsed_job(words) for one in baselines.BASELINES for words in one.steps]
    assert {job.family for job in jobs} == {"qwen3_5", "glm_moe_dsa", "deepseek_v41", "kimi_k3"}
    rows = {(job.family, job.mode, n * job.width) for job in jobs for n in job.requests}
    assert {("qwen3_5", "verify", n) for n in (7, 56)} <= rows
    assert {("glm_moe_dsa", "verify", n) for n in (4, 16, 6, 12)} <= rows
    assert {("deepseek_v41", "verify", n) for n in (6, 48)} <= rows
    assert {(family, "decode", n) for family in {job.family for job in jobs} for n in (1, 8)} <= rows


WORKER = """
import subprocess, sys, time
out = open(sys.argv[2], "a")
out.write("measured\\n"); out.flush()
if MODE == "hang":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    out.write(f"{child.pid}\\n"); out.flush()
    time.sleep(60)
sys.exit(3 if MODE == "fail" else 0)
"""


def worker(mode):
    return [sys.executable, "-c", WORKER.replace("MODE", repr(mode))]


def test_a_worker_out_of_time_ends_with_its_compilers_and_keeps_its_lines(tmp_path, monkeypatch, capsys):
    out, one = tmp_path / "out", baselines.Baseline("k3", ("Kimi-K3 --stock-only",), 7777)
    wait = subprocess.Popen.wait

    def out_of_time(process, timeout=None):
        """Time is out as soon as the worker has measured and started its compiler."""
        if timeout != 7777:
            return wait(process, timeout)
        until = time.monotonic() + 60
        while not (out.is_file() and out.read_text().count("\n") == 2) and time.monotonic() < until:
            time.sleep(0.02)
        raise subprocess.TimeoutExpired(process.args, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", out_of_time)
    assert baselines.run([one], out, bench.parsed_job, worker("hang"), os.environ) == 1
    assert "k3: out of time; its lines are kept" in capsys.readouterr().out
    measured, child = out.read_text().split()
    assert measured == "measured"
    stat = Path(f"/proc/{child}/stat")
    until = time.monotonic() + 10
    while stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] != "Z" and time.monotonic() < until:
        time.sleep(0.02)
    assert not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] == "Z"


def test_sigterm_ends_the_worker_too(tmp_path, monkeypatch):
    """A time limit around the command must not leave a worker on the card."""
    workers, wait = [], subprocess.Popen.wait

    def terminated(process, timeout=None):
        if timeout == 7777:
            workers.append(process)
            signal.raise_signal(signal.SIGTERM)
        return wait(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", terminated)
    one = baselines.Baseline("k3", ("Kimi-K3 --stock-only",), 7777)
    with pytest.raises(SystemExit) as ended:
        baselines.run([one], tmp_path / "out", bench.parsed_job, worker("hang"), os.environ)
    assert ended.value.code == 143 and workers[0].returncode == -signal.SIGTERM


def test_a_failed_baseline_leaves_the_next_and_the_total_is_kept(tmp_path, capsys):
    out, step = tmp_path / "out", ("Kimi-K3 --stock-only",)
    chosen = [baselines.Baseline(name, step, 50) for name in "ab"]
    assert baselines.run(chosen, out, bench.parsed_job, worker("fail"), os.environ) == 2
    assert out.read_text() == "measured\nmeasured\n" and "a: exit code 3" in capsys.readouterr().out
    assert baselines.run(chosen, out, bench.parsed_job, worker("work"), os.environ) == 0
    assert baselines.run(chosen, out, bench.parsed_job, worker("work"), os.environ, total_s=5) == 2
    assert "b: no time left" in capsys.readouterr().out


def test_the_command_says_what_it_runs_and_its_plumbing_runs(tmp_path, monkeypatch, capsys):
    assert cli.main(["bench", "baselines", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert all(words in shown for one in baselines.BASELINES for words in one.steps)
    monkeypatch.setattr(bench, "driver_present", lambda: False)
    monkeypatch.setattr(stats, "RESAMPLES", 50)
    out = tmp_path / "step.jsonl"
    assert cli.main(["bench", "baselines", "kimi-k3", "deepseek-v4.1", "--out", str(out)]) == 0
    lines = list(record.load([tmp_path / "plumbing-step.jsonl"]))
    assert {line.family for line in lines} == {"kimi_k3", "deepseek_v41"} and not out.exists()
    with pytest.raises(ForkError, match="unknown baseline kimi"):
        baselines.named(["kimi"])


def test_marlins_two_modules_compile_at_once_beside_the_load(monkeypatch):
    assert precompile.modules("kimi_k3", "mxfp4", {}) == [["True", "False"], ["True", "True"]]
    # DeepSeek's own MXFP4 method has no biases, nor has NVFP4.
    assert precompile.modules("deepseek_v41", "mxfp4", {})[0] == ["False", "False"]
    assert precompile.modules("glm_moe_dsa", "nvfp4", {})[1] == ["False", "True"]
    assert precompile.modules("qwen3_5", "bf16", {}) == []
    assert precompile.modules("kimi_k3", "mxfp4", {"moe_runner_backend": "triton_kernel"}) == []
    started = []

    class Compiler:
        def __init__(self, command, **kwargs):
            started.append(command[-2:])

        def poll(self):
            return None

    monkeypatch.setattr(precompile.subprocess, "Popen", Compiler)
    monkeypatch.setattr(precompile, "nvcc", lambda: Path("/cuda/bin/nvcc"))
    with precompile.compiling(precompile.modules("kimi_k3", "mxfp4", {})):
        assert started == [["True", "False"], ["True", "True"]], "before the body, and not waited for"
    assert precompile.main([]) == 2


def test_without_a_compiler_one_line_says_so_and_the_load_goes_on(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setattr(precompile.subprocess, "Popen", None)
    loaded = False
    with precompile.compiling(precompile.modules("kimi_k3", "mxfp4", {})):
        loaded = True
    shown = capsys.readouterr()
    assert loaded and shown.out.count("\n") == 1 and "no nvcc in CUDA_HOME" in shown.out and not shown.err
    with precompile.compiling([]):
        assert capsys.readouterr().out == "", "nothing to compile is nothing to say"


def test_the_compiler_is_cuda_homes_then_paths(monkeypatch, tmp_path):
    for name in ("home", "path"):
        (tmp_path / name / "bin").mkdir(parents=True)
        (tmp_path / name / "bin" / "nvcc").touch(mode=0o755)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path" / "bin"))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    assert precompile.nvcc() == tmp_path / "path" / "bin" / "nvcc"
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    assert precompile.nvcc() == tmp_path / "home" / "bin" / "nvcc"


def test_a_module_that_does_not_compile_is_one_line_with_the_compilers_reason(monkeypatch, capsys):
    text = "Failed to build JIT module\nninja: job failed\nnvcc fatal   : Unsupported gpu architecture\n"
    for raised, told in (
        (RuntimeError(text), "RuntimeError: nvcc fatal   : Unsupported gpu architecture"),
        (ImportError("no torch"), "ImportError: no torch"),
        (ValueError(), "ValueError: no reason given"),
    ):

        def failing(*words, raised=raised):
            raise raised

        monkeypatch.setattr(precompile, "compile_module", failing)
        assert precompile.main(["False", "True", "9.0"]) == 1
        shown = capsys.readouterr()
        assert shown.err == f"Marlin's kernel (bias False, zeroed True) is not compiled ahead: {told}\n"


def test_a_module_is_asked_for_by_its_words(monkeypatch):
    asked = []
    monkeypatch.setattr(precompile, "compile_module", lambda *words: asked.append(words))
    assert precompile.main(["True", "False"]) == precompile.main(["False", "True", "9.0"]) == 0
    assert asked == [(True, False, ""), (False, True, "9.0")]
