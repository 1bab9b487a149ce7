# SPDX-License-Identifier: Apache-2.0
"""Stock baselines as one command: ``python -m sglang_fork.bench.baselines OUT.jsonl [NAME...]``, in a Python
that has SGLang and sees a GPU; ``./sglang.sh bench baselines`` runs the same.

A baseline is a worker of its own with a time limit, its modes in one process so that the weights load once.
Every line goes into the one file at once: a baseline that fails or runs out of time keeps what it measured,
and the next one runs. The longest known start goes first.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sglang_fork.bench.job import Job, write_jobs
from sglang_fork.bench.progress import Progress
from sglang_fork.errors import ForkError
from sglang_fork.launch import process

# Seconds that a worker has after SIGTERM before SIGKILL.
GRACE_S = 10.0


@dataclass(frozen=True)
class Baseline:
    """``steps`` are the words of ``bench step`` for each of its modes; ``limit_s`` holds a cold JIT cache."""

    name: str
    steps: tuple[str, ...]
    limit_s: float


BASELINES = (
    Baseline("kimi-k3", ("Kimi-K3 --stock-only",), 540),
    Baseline(
        "deepseek-v4.1",
        ("DeepSeek-V4.1-Flash --stock-only", "DeepSeek-V4.1-Flash --stock-only --mode verify"),
        540,
    ),
    Baseline(
        "glm-nvfp4",
        (
            "GLM-5.3-NVFP4 --stock-only --weights nvfp4",
            "GLM-5.3-NVFP4 --stock-only --weights nvfp4 --mode verify --width 4 --requests 1,4",
            "GLM-5.3-NVFP4 --stock-only --weights nvfp4 --mode verify --width 6 --requests 1,2",
        ),
        540,
    ),
    Baseline(
        "glm-bf16",
        (
            "GLM-5.3-NVFP4 --stock-only",
            "GLM-5.3-NVFP4 --stock-only --mode verify --width 4 --requests 1,4",
            "GLM-5.3-NVFP4 --stock-only --mode verify --width 6 --requests 1,2",
        ),
        420,
    ),
    Baseline(
        "qwen3.5-nvfp4",
        (
            "Qwen3.5-397B-NVFP4 --stock-only --weights nvfp4-fp8",
            "Qwen3.5-397B-NVFP4 --stock-only --weights nvfp4-fp8 --mode verify",
        ),
        540,
    ),
    Baseline("qwen3.5-bf16", ("Qwen3.5-397B-NVFP4", "Qwen3.5-397B-NVFP4 --stock-only --mode verify"), 300),
    Baseline("qwen3.5-35b", ("Qwen3.5-35B-A3B --whole --requests 1,2,4,8",), 240),
)


def named(names: Sequence[str]) -> list[Baseline]:
    """The baselines of these names, all without one. Raises ``ForkError`` for an unknown name."""
    known = {one.name: one for one in BASELINES}
    if unknown := [name for name in names if name not in known]:
        raise ForkError(f"unknown baseline {', '.join(unknown)}", f"baselines: {', '.join(known)}")
    return [known[name] for name in names] or list(BASELINES)


def run(
    chosen: Sequence[Baseline],
    out: Path,
    jobs_of: Callable[[str], Job],
    worker: Sequence[str],
    environment: Mapping[str, str],
    total_s: float = float("inf"),
) -> int:
    """Run each in turn, at most ``total_s`` seconds in all; returns the number that failed or had no time."""
    began = time.monotonic()
    missing = 0
    with process.ending_on_sigterm(), Progress(len(chosen), "baseline") as progress:
        for one in chosen:
            left = total_s - (time.monotonic() - began)
            if left < GRACE_S:
                progress.say(f"{one.name}: no time left")
                missing += 1
                progress.advance()
                continue
            jobs = [jobs_of(step) for step in one.steps]
            with progress.aside():
                code, took = limited(jobs, out, worker, environment, min(one.limit_s, left - GRACE_S))
            how = {0: "done", 124: "out of time; its lines are kept"}.get(code, f"exit code {code}")
            progress.say(f"{one.name}: {how} after {took:.0f} s")
            missing += code != 0
            progress.advance()
    return missing


def limited(
    jobs: Sequence[Job], out: Path, worker: Sequence[str], environment: Mapping[str, str], limit_s: float
) -> tuple[int, float]:
    """(exit code, seconds) of one worker; 124 when its time ran out, and the worker and what it started have
    ended."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        spec = Path(folder) / "jobs.json"
        write_jobs(spec, jobs)
        child = subprocess.Popen([*worker, str(spec), str(out)], env=dict(environment), process_group=0)
        try:
            code = child.wait(timeout=max(1.0, limit_s))
        except subprocess.TimeoutExpired:
            code = 124
            end(child)
        except BaseException:
            end(child)
            raise
    return code, time.monotonic() - began


def end(child: subprocess.Popen[bytes]) -> None:
    """End a worker's process group, its compilers too."""
    for number in (15, 9):
        try:
            os.killpg(child.pid, number)
            child.wait(timeout=GRACE_S)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def main(argv: list[str]) -> int:
    # The command's parser makes the jobs; it needs no environment of the tool.
    from sglang_fork.commands import bench

    if not argv:
        print("usage: python -m sglang_fork.bench.baselines OUT.jsonl [NAME...]", file=sys.stderr)
        return 2
    try:
        chosen = named(argv[1:])
    except ForkError as error:
        print(f"bench baselines: {error}", file=sys.stderr)
        return error.code
    worker = [sys.executable, "-P", "-m", "sglang_fork.bench.step"]
    return min(1, run(chosen, Path(argv[0]), bench.parsed_job, worker, os.environ))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
