# SPDX-License-Identifier: Apache-2.0
"""The step benchmark's worker: ``python -m sglang_fork.bench.step JOBS.json OUT.jsonl [LOCK]``, in a Python
that has SGLang.

For each job it builds the slice, captures every arm, and for each width and routing case replays the arms in
balanced order, L2 cold. Each case is appended to OUT as soon as it is measured, so a run that fails keeps
what it has. Jobs of one slice load its weights once. With LOCK, a file, several workers can share a card:
they start together, and the one that times stops the others meanwhile.
"""

from __future__ import annotations

import faulthandler
import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from sglang_fork.bench import precompile, record, routing, slices, stats
from sglang_fork.bench.job import Job, measurement, read_jobs
from sglang_fork.bench.progress import Progress
from sglang_fork.errors import ForkError

# Tokens of the KV pool: enough for 8 requests of 4096, little beside the weights.
POOL_TOKENS = 65536


# Seconds after which a start says where it is.
SLOW = 60.0
# Seconds for what a stopped worker had launched to end.
SETTLE = 0.3
SLOTS = "SGLANG_NVIDIA_MEGAKERNEL_SLOTS"
MEGAKERNEL = "enable_nvidia_megakernel"
OWN_ROUTING = "the router chose for itself"


def versions() -> dict[str, str]:
    """Versions that a time depends on: packages, driver, CUDA."""
    import torch

    found = {"cuda": str(torch.version.cuda)}
    for name in ("sglang", "torch", "triton", "flashinfer-python", "sglang-kernel"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed as a package"
    if torch.cuda.is_available():
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        answer = subprocess.run(query, capture_output=True, text=True, check=False)
        found["driver"] = answer.stdout.split("\n")[0].strip() or "unknown"
    return found


def server_arguments(job: Job, model: Path) -> dict[str, Any]:
    """SGLang's arguments for a slice: dummy weights, no tokenizer, only decode graphs of the asked batch
    sizes.
    """
    args: dict[str, Any] = {
        "model_path": str(model),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "sampling_backend": "pytorch",
        "mem_fraction_static": 0.97,
        "max_total_tokens": POOL_TOKENS,
        "context_length": 2 * job.context + 256,
        "max_running_requests": max(job.requests) + 1,
        "cuda_graph_config": {
            "decode": {"backend": "full", "bs": sorted(job.requests)},
            "prefill": {"backend": "disabled"},
        },
        "disable_radix_cache": True,
        "log_level": "warning",
        "random_seed": 1,
    }
    if job.mode == "verify" and job.family == "deepseek_v41":
        # Upstream accepts no other draft for this family; its draft is in the model's own checkpoint.
        args |= {"speculative_algorithm": "DSPARK", "speculative_dspark_block_size": job.width - 1}
    elif job.mode == "verify":
        args |= {
            "speculative_algorithm": "EAGLE",
            "speculative_num_steps": job.width - 1,
            "speculative_eagle_topk": 1,
            "speculative_num_draft_tokens": job.width,
            "speculative_draft_model_path": str(model),
        }
    return args | job.server_args


def register(lock: Path | None) -> None:
    """Name this process among the workers that share ``lock``."""
    if lock is not None:
        with lock.open("a") as workers:
            workers.write(f"{os.getpid()}\n")


@contextmanager
def alone(lock: Path | None) -> Iterator[None]:
    """Holds the card: other workers that share ``lock`` wait to time, and are stopped (SIGSTOP) meanwhile so
    that they launch nothing. What they compile goes on in processes of its own."""
    if lock is None:
        yield
        return
    with lock.with_suffix(".timing").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        others = {int(word) for word in lock.read_text().split()} - {os.getpid()}
        _signal(others, signal.SIGSTOP)
        time.sleep(SETTLE)
        try:
            yield
        finally:
            _signal(others, signal.SIGCONT)


def _signal(processes: Iterable[int], number: int) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)


@dataclass
class Started:
    """A job whose runner and graphs are on the card."""

    job: Job
    rank: slices.Slice
    runner: Any
    arms: Any
    graphs: Any
    chosen: dict[int, list[Any]]
    facts: dict[str, Any]
    timed: list[tuple[int, str, list[record.Measurement]]] = field(default_factory=list)


def measure(jobs: Sequence[Job], out: Path, lock: Path | None = None) -> int:
    """Measure every case of every job; returns the number of jobs that failed. Lines are appended to
    ``out``; a job that fails is reported and the next one runs."""
    import torch

    from sglang_fork.bench import engine, timing

    if not torch.cuda.is_available():
        raise ForkError(
            "the step benchmark times a GPU, and none is visible", "--dry-run says what would be measured"
        )
    facts: dict[str, Any] = {"versions": versions()}
    register(lock)
    engine.Weights().install()
    started: list[Started] = []
    failed = over = 0
    with Progress(sum(_cases(job) for job in jobs), "case") as progress:
        for job in jobs:
            try:
                with telling_where(), progress.aside():
                    started.append(_start(job, facts))
                with alone(lock):
                    if "copy" not in facts:
                        facts["copy"], facts["read"] = timing.bandwidth()
                        torch.cuda.empty_cache()
                        progress.say(f"copy {facts['copy']:.2f} TB/s, read only {facts['read']:.2f} TB/s")
                    _time(started[-1], out, progress)
            except Exception:
                failed += 1
                with progress.aside():
                    print(f"{_named(job)}: failed", flush=True)
                    traceback.print_exc()
            over += _cases(job)
            progress.reach(over)
    # Last: an attached profiler slows every later replay. Its lines supersede those without kernels.
    wanted = [one for one in started if one.job.profile and one.timed]
    over = 0
    with Progress(sum(len(one.timed) for one in wanted), "profiled case") as progress:
        for one in wanted:
            try:
                with alone(lock):
                    _profile(one, out, progress)
            except Exception:
                failed += 1
                with progress.aside():
                    print(f"{_named(one.job)}: not profiled", flush=True)
                    traceback.print_exc()
            over += len(one.timed)
            progress.reach(over)
    return failed


def _cases(job: Job) -> int:
    return len(job.requests) * len(job.cases)


def _named(job: Job) -> str:
    return f"{job.family} {job.weights} {job.mode} x{job.width}"


def compiler_seconds() -> float:
    """Processor seconds of this process's ended children: nvcc and its parts, ninja, ptxas."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@contextmanager
def telling_where(seconds: float = SLOW) -> Iterator[None]:
    """Print every thread's stack each ``seconds`` while the body runs: a start can compile for minutes, and
    the log should say what."""
    faulthandler.dump_traceback_later(seconds, repeat=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _start(job: Job, facts: dict[str, Any]) -> Started:
    from sglang_fork.bench import engine

    rank = job.slice()
    began, compiled = time.monotonic(), compiler_seconds()
    words = precompile.modules(job.family, job.weights, job.server_args)
    with precompile.compiling(words), tempfile.TemporaryDirectory(prefix="slice-") as folder:
        (Path(folder) / "config.json").write_text(slices.to_json(rank.config), encoding="utf-8")
        runner = _runner(job, Path(folder))
        loaded = time.monotonic()
        if job.tune:
            tune_experts(job, rank, runner.model)
        arms = engine.arms_of(runner.model, job.lists)
        graphs, chosen = engine.capture(runner, arms)
    print(
        f"{rank.family} {rank.name} {job.weights} {job.mode} x{job.width}: weights {loaded - began:.0f} s, "
        f"graphs {time.monotonic() - loaded:.0f} s, of which compilers' processor time "
        f"{compiler_seconds() - compiled:.0f} s",
        flush=True,
    )
    return Started(job, rank, runner, arms, graphs, chosen, facts)


def _runner(job: Job, folder: Path) -> Any:
    """The job's model runner; where SGLang refuses its megakernel, stock's alone, the refusal printed."""
    from sglang_fork.bench import engine

    arguments = server_arguments(job, folder)
    with slots_chosen(job.slots):
        try:
            return engine.start(arguments)
        except Exception as error:
            if not arguments.pop(MEGAKERNEL, None):
                raise
            print(f"{_named(job)}: stock alone, since with the megakernel: {error}", flush=True)
    return engine.start(arguments)


@contextmanager
def slots_chosen(slots: str) -> Iterator[None]:
    """The slot list of what starts in the body; an empty one leaves the environment's."""
    before = os.environ.get(SLOTS)
    if slots:
        os.environ[SLOTS] = slots
    try:
        yield
    finally:
        if slots:
            os.environ.pop(SLOTS)
            os.environ.update({SLOTS: before} if before is not None else {})


def tune_experts(job: Job, rank: slices.Slice, model: Any) -> None:
    """Tune the Triton MoE kernel where SGLang ships no tiles for the slice's shapes; best effort."""
    from sglang_fork.bench import engine, tune

    layers = engine.expert_layers(model)
    name = tune.missing_file(layers[0]) if layers else None
    if name is None:
        return
    began = time.monotonic()
    rows = sorted({1, 4, 6, 8, 12, 16, *(n * job.width for n in job.requests)})
    chosen = tune.tune(layers[:8], rows, routed=rank.experts, top_k=rank.top_k)
    if chosen:
        path = tune.install(name, chosen, Path(tempfile.gettempdir()) / "sglang-moe-configs")
        print(f"tuned {path} in {time.monotonic() - began:.0f} s: {json.dumps(chosen)}", flush=True)


def _time(one: Started, out: Path, progress: Progress) -> None:
    for requests in sorted(one.job.requests):
        for case in one.job.cases:
            one.timed.append((requests, case, _case(one, requests, case, out, progress)))
            progress.advance()


def _profile(one: Started, out: Path, progress: Progress) -> None:
    from sglang_fork.bench import engine, timing

    engine.activate(one.runner)
    for requests, case, lines in one.timed:
        _, replays = _prepare(one, requests, case, progress)
        for line in lines:
            arm = f"{line.arm}:{line.slots}" if f"{line.arm}:{line.slots}" in one.arms else line.arm
            kernels = timing.kernel_times(replays[f"{arm}:layers"])
            record.append(out, _profiled(line, kernels))
            progress.say(_short(_profiled(line, kernels)))
        progress.advance()


def _profiled(line: record.Measurement, kernels: dict[str, tuple[float, float]]) -> record.Measurement:
    """The line with the launches and microseconds of its layers' kernels."""
    launches = sum(n for n, _ in kernels.values()) / line.layers
    return replace(
        line, launches_per_layer=launches, kernels={name: [n, us] for name, (n, us) in kernels.items()}
    )


def _prepare(
    one: Started, requests: int, case: str, progress: Progress
) -> tuple[routing.Routing, dict[str, Any]]:
    """Impose and check a case's routing; (the routing, a replay of each arm and part). Where stock runs alone
    and its router cannot be led, the routing is what it chose."""
    from sglang_fork.bench import engine

    job, rank, model = one.job, one.rank, one.runner.model
    drawn = routing.draw(
        case, layers=rank.moe_layers, rows=requests * job.width, experts=rank.experts, top_k=rank.top_k
    )
    engine.impose_routing(model, drawn, rank.experts)
    batch = engine.fill_step(one.graphs, requests, job.context, rank.config["vocab_size"])
    engine.replayer(one.graphs, batch, "stock", engine.CHECK)()
    try:
        engine.check_routing(one.chosen[requests], drawn, rank.experts)
    except ForkError as error:
        if len(one.arms) > 1:
            raise
        progress.say(f"routing not imposed: {error}")
        drawn = engine.routing_of(one.chosen[requests], rank.experts)
    return drawn, {
        f"{arm}:{part}": engine.replayer(one.graphs, batch, arm, part)
        for arm in one.arms
        for part in (engine.FULL, engine.LAYERS)
    }


def _case(one: Started, requests: int, case: str, out: Path, progress: Progress) -> list[record.Measurement]:
    """Time one case; its lines, one an arm, are appended to ``out`` at once."""
    import torch

    from sglang_fork.bench import timing

    job, rank, facts = one.job, one.rank, one.facts
    drawn, replays = _prepare(one, requests, case, progress)
    samples = timing.alternate(replays, rounds=job.rounds, replays=job.replays)
    lines = []
    for arm in one.arms:
        lines.append(
            measurement(
                job,
                rank,
                drawn,
                case=case,
                arm=arm,
                whole=stats.interval(samples[f"{arm}:full"]),
                layers=stats.interval(samples[f"{arm}:layers"]),
                card=torch.cuda.get_device_name(),
                bandwidth=(facts["copy"], facts["read"]),
                versions=facts["versions"],
                choices=_choices(one.runner),
                note=OWN_ROUTING if drawn.case != case else "",
            )
        )
        record.append(out, lines[-1])
        progress.say(_short(lines[-1]))
    return lines


def _choices(runner: Any) -> dict[str, str]:
    """What stock chose: attention, MoE and GEMM backends, as resolved."""
    from sglang.srt.layers.moe.utils import get_moe_runner_backend
    from sglang.srt.runtime_context import get_exec

    chosen = {"attention": type(runner.attn_backend).__name__, "moe": str(get_moe_runner_backend())}
    for part in ("full_attn_backend", "linear_attn_backend"):
        if (inner := getattr(runner.attn_backend, part, None)) is not None:
            chosen[part] = type(inner).__name__
    chosen["decode_graphs"] = str(get_exec().graph.cuda_graph_config.decode.backend)
    return chosen


def _short(line: record.Measurement) -> str:
    return (
        f"{line.family} {line.mode} rows {line.rows} {line.routing} {line.arm}: {line.median_us:.0f} us "
        f"[{line.ci_low_us:.0f}, {line.ci_high_us:.0f}], layers {line.layers_median_us:.0f} us, "
        f"{line.launches_per_layer:.1f} launches a layer, {line.fraction_of_copy:.1%} of copy"
    )


def main(argv: list[str]) -> int:
    if len(argv) not in (2, 3):
        print("usage: python -m sglang_fork.bench.step JOBS.json OUT.jsonl [LOCK]", file=sys.stderr)
        return 2
    try:
        failed = measure(read_jobs(Path(argv[0])), Path(argv[1]), Path(argv[2]) if argv[2:] else None)
    except ForkError as error:
        print(f"bench step: {error}", file=sys.stderr)
        return error.code
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
