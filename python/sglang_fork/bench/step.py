# SPDX-License-Identifier: Apache-2.0
"""The step benchmark's worker: ``python -m sglang_fork.bench.step JOB.json OUT.jsonl``, in a Python that has
SGLang.

It builds the slice, captures every arm, and for each width and routing case replays the arms in balanced
order, L2 cold. Each case is appended to OUT as soon as it is measured, so a run that fails keeps what it has.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from sglang_fork.bench import record, routing, slices, stats
from sglang_fork.errors import ForkError


@dataclass(frozen=True)
class Job:
    """What to measure. ``width`` is the rows a request (1 for decode); ``requests`` the batch sizes."""

    preset: str
    family: str
    production: dict[str, Any]
    tp: int
    layers: int
    weights: str
    kv: str
    mode: str
    width: int
    requests: tuple[int, ...]
    context: int
    cases: tuple[str, ...] = routing.CASES
    rounds: int = 6
    replays: int = 20
    server_args: dict[str, Any] = field(default_factory=dict)
    slots: str = ""
    profile: bool = True
    tree: str = "unknown"
    note: str = ""

    def __post_init__(self) -> None:
        if self.rounds < 5 or self.replays < 20:
            raise ForkError(f"{self.rounds} x {self.replays} replays are too few; at least 5 x 20")
        if not self.requests or min(self.requests) < 1:
            raise ForkError("name at least one batch size of 1 or more")
        if max(self.requests) * self.width > 64:
            raise ForkError(f"{max(self.requests)} requests of {self.width} rows are more than 64 rows")

    def slice(self) -> slices.Slice:
        return slices.build(
            self.family, self.production, tp=self.tp, layers=self.layers, weights=self.weights
        )


def read_job(path: Path) -> Job:
    values = json.loads(path.read_text(encoding="utf-8"))
    values |= {"requests": tuple(values["requests"]), "cases": tuple(values["cases"])}
    return Job(**values)


def write_job(path: Path, job: Job) -> None:
    path.write_text(json.dumps(asdict(job)), encoding="utf-8")


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
        "mem_fraction_static": 0.7,
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
    if job.mode == "verify":
        args |= {
            "speculative_algorithm": "EAGLE",
            "speculative_num_steps": job.width - 1,
            "speculative_eagle_topk": 1,
            "speculative_num_draft_tokens": job.width,
            "speculative_draft_model_path": str(model),
        }
    return args | job.server_args


def measure(job: Job, out: Path) -> int:
    """Measure every case of ``job``; returns the number of lines appended to ``out``."""
    import torch

    from sglang_fork.bench import engine, timing

    if not torch.cuda.is_available():
        raise ForkError(
            "the step benchmark times a GPU, and none is visible", "--dry-run says what would be measured"
        )
    rank = job.slice()
    copy, read = timing.bandwidth()
    print(f"copy {copy:.2f} TB/s, read only {read:.2f} TB/s", flush=True)
    with tempfile.TemporaryDirectory(prefix="slice-") as folder:
        (Path(folder) / "config.json").write_text(slices.to_json(rank.config), encoding="utf-8")
        began = time.monotonic()
        runner = engine.start(server_arguments(job, Path(folder)))
        arms = engine.arms_of(runner.model)
        graphs = engine.capture(runner, arms)
        print(f"{rank.family} {rank.name}: ready in {time.monotonic() - began:.0f} s", flush=True)
    facts = {"versions": versions(), "copy": copy, "read": read}
    cases = [(n, case) for n in sorted(job.requests) for case in job.cases]
    timed = [_case(job, rank, runner, graphs, arms, n, case, facts, out) for n, case in cases]
    if job.profile:
        # Last: an attached profiler slows every later replay. Its lines supersede those without kernels.
        for (n, case), lines in zip(cases, timed, strict=True):
            _, replays = _prepare(job, rank, runner, graphs, arms, n, case)
            for line in lines:
                kernels = timing.kernel_times(replays[f"{line.arm}:layers"])
                record.append(out, _profiled(line, kernels))
                print(_short(_profiled(line, kernels)), flush=True)
    return sum(map(len, timed))


def _profiled(line: record.Measurement, kernels: dict[str, tuple[float, float]]) -> record.Measurement:
    """The line with the launches and microseconds of its layers' kernels."""
    launches = sum(n for n, _ in kernels.values()) / line.layers
    return replace(
        line, launches_per_layer=launches, kernels={name: [n, us] for name, (n, us) in kernels.items()}
    )


def _prepare(
    job: Job, rank: slices.Slice, runner: Any, graphs: Any, arms: Any, requests: int, case: str
) -> tuple[routing.Routing, dict[str, Any]]:
    """Impose and check a case's routing; (the routing, a replay of each arm and part)."""
    from sglang_fork.bench import engine

    drawn = routing.draw(
        case, layers=rank.moe_layers, rows=requests * job.width, experts=rank.experts, top_k=rank.top_k
    )
    engine.impose_routing(runner.model, drawn, rank.experts)
    batch = engine.fill_step(graphs, requests, job.context, rank.config["vocab_size"])
    engine.check_routing(_router_outputs(runner.model, graphs, batch, rank.experts), drawn)
    return drawn, {
        f"{arm}:{part}": engine.replayer(graphs, batch, arm, part)
        for arm in arms
        for part in (engine.FULL, engine.LAYERS)
    }


def _case(
    job: Job,
    rank: slices.Slice,
    runner: Any,
    graphs: Any,
    arms: Any,
    requests: int,
    case: str,
    facts: dict[str, Any],
    out: Path,
) -> list[record.Measurement]:
    """Time one case; its lines, one an arm, are appended to ``out`` at once."""
    import torch

    from sglang_fork.bench import timing

    rows = requests * job.width
    drawn, replays = _prepare(job, rank, runner, graphs, arms, requests, case)
    samples = timing.alternate(replays, rounds=job.rounds, replays=job.replays)
    step_bytes, layer_bytes = rank.step_bytes(sum(drawn.distinct(i) for i in range(rank.moe_layers)))
    lines = []
    for arm in arms:
        whole, alone = stats.interval(samples[f"{arm}:full"]), stats.interval(samples[f"{arm}:layers"])
        lines.append(
            record.Measurement(
                date=time.strftime("%Y-%m-%d", time.gmtime()),
                card=torch.cuda.get_device_name(),
                family=rank.family,
                preset=job.preset,
                slice=rank.name,
                layers=rank.layers,
                weights=job.weights,
                kv=job.kv,
                mode=job.mode,
                rows=rows,
                routing=case,
                context=job.context,
                arm=arm,
                slots=job.slots if arm == "mega" else "",
                median_us=whole.median,
                ci_low_us=whole.low,
                ci_high_us=whole.high,
                layers_median_us=alone.median,
                layers_ci_low_us=alone.low,
                layers_ci_high_us=alone.high,
                launches_per_layer=0.0,
                weight_bytes=step_bytes,
                layers_weight_bytes=layer_bytes,
                copy_tb_s=facts["copy"],
                read_tb_s=facts["read"],
                fraction_of_copy=layer_bytes / alone.median / 1e6 / facts["copy"],
                versions=facts["versions"],
                tree=job.tree,
                choices=_choices(runner),
                note=job.note,
            )
        )
        record.append(out, lines[-1])
        print(_short(lines[-1]), flush=True)
    return lines


def _router_outputs(model: Any, graphs: Any, batch: Any, experts: int) -> list[Any]:
    """The routers' outputs of one eager stock step on the same inputs."""
    import torch

    from sglang.srt.model_executor.forward_context import ForwardContext, forward_context
    from sglang_fork.bench import engine

    outputs: list[Any] = []
    hooks = [
        gate.register_forward_hook(
            lambda module, args, out: outputs.append((out[0] if isinstance(out, tuple) else out).clone())
        )
        for gate in engine.routers(model, experts)
    ]
    try:
        # The graphs' plans are their own; an eager step needs one of its batch.
        graphs.attn_backend.init_forward_metadata(batch)
        with (
            torch.no_grad(),
            forward_context(ForwardContext(attn_backend=graphs.attn_backend), forward_batch=batch),
        ):
            engine.layers_forward(model, "stock")(batch.input_ids, batch.positions, batch)
    finally:
        for hook in hooks:
            hook.remove()
    return outputs


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
    if len(argv) != 2:
        print("usage: python -m sglang_fork.bench.step JOB.json OUT.jsonl", file=sys.stderr)
        return 2
    try:
        lines = measure(read_job(Path(argv[0])), Path(argv[1]))
    except ForkError as error:
        print(f"bench step: {error}", file=sys.stderr)
        return error.code
    print(f"{lines} measurements")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
