# SPDX-License-Identifier: Apache-2.0
"""Small-M products of Qwen3.5-122B and 35B on one GPU: Marlin NVFP4, FP8 and BF16 (not a pytest file).

    PYTHONPATH=<patched tree> python gpu_bench.py [--out results.jsonl] [--only dense|moe] [--seconds 60]

A line is in the file when it is measured; after ``--seconds`` no further layer is begun. The experts come
first. ``--dry`` calls every arm once at small shapes without a GPU, by twins that have the signatures of
what they stand for; its lines hold no time.

Every call reads weights that are not in L2: a CUDA graph runs through enough copies of the layer (or enough
different expert choices) to pass 4 times L2. A number is the median of ``REPLAYS`` replays divided by the
calls in the graph. ``of_copy`` is the rate of weight bytes (codes, scales, for MoE those of the experts
touched) over the rate of a device-to-device copy, read plus written, in the same run.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import statistics
import sys
import tempfile
import time
import types
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from sglang.srt.layers.moe.moe_runner.base import MoeRunnerConfig
from sglang.srt.layers.quantization import fp8_post_quant, gdn_post_quant, marlin_scale_range
from sglang.srt.layers.quantization import marlin_utils_fp4 as marlin

BF16 = torch.bfloat16
ROWS = (1, 7, 56)
REPLAYS = 25
COLD_BYTES = 256 * 2**20

# (layer, N, K) of one GPU, TP1, from the models' published configurations.
DENSE = {
    "Qwen3.5-122B": [
        ("gdn in_proj_qkvz", 20480, 3072), ("gdn out_proj", 3072, 8192), ("attention qkv+gate", 17408, 3072),
        ("shared gate_up", 2048, 3072), ("shared down", 3072, 1024), ("lm_head", 248320, 3072),
    ],
    "Qwen3.5-35B": [
        ("gdn in_proj_qkvz", 12288, 2048), ("gdn out_proj", 2048, 4096), ("attention qkv+gate", 9216, 2048),
        ("shared gate_up", 1024, 2048), ("shared down", 2048, 512), ("lm_head", 248320, 2048),
    ],
}  # fmt: skip
# (experts, top-k, hidden, intermediate)
MOE = {"Qwen3.5-122B": (256, 8, 3072, 1024), "Qwen3.5-35B": (256, 8, 2048, 512)}

DRY_DENSE = {"dry": [("gdn in_proj_qkvz", 128, 128)]}
DRY_MOE = {"dry": (4, 2, 128, 128)}
DEVICE = "cuda"

out: Path | None = None
dry = False
twins = contextlib.ExitStack()  # --dry's, for as long as the process


def record(**values) -> None:
    line = json.dumps(values | ({"dry": True} if dry else {}))
    print(line, flush=True)
    if out is not None:
        with out.open("a") as file:
            file.write(line + "\n")


def measured(size: float, calls: list[Callable[[], object]], rate: float) -> dict:
    """The figures of one arm; without a GPU its first call is made and nothing is timed."""
    if dry:
        calls[0]()
        return {}
    microseconds = timed(calls)
    of_copy = size / (microseconds * 1e-6) / rate
    return {"us": round(microseconds, 2), "of_copy": round(of_copy, 3), "copies": len(calls)}


def timed(calls: list[Callable[[], object]]) -> float:
    """Microseconds a call: the calls captured in one graph, replayed."""
    for call in calls[:2]:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    for _ in range(3):
        graph.replay()
    times = []
    for _ in range(REPLAYS):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) * 1000 / len(calls))
    return statistics.median(times)


def copy_rate() -> float:
    """Bytes read plus written a second by a 4 GiB device-to-device copy outside graphs, median of ``REPLAYS``."""
    source = torch.randint(0, 255, (2**32,), dtype=torch.uint8, device=DEVICE)
    target = torch.empty_like(source)
    times = []
    for _ in range(REPLAYS + 5):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        target.copy_(source)
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) * 1e-3)
    return 2 * 2**32 / statistics.median(times[5:])


def publish_config() -> None:
    """The process-wide configuration that SGLang's Triton MoE reads, of a model that is never loaded."""
    from sglang.srt.runtime_context import SpawnRanks, publish
    from sglang.srt.server_args import ServerArgs

    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 1}
    config |= {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2}
    config |= {"vocab_size": 128, "max_position_embeddings": 512}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config))
        args = ServerArgs(model_path=folder, load_format="dummy", attention_backend="triton")
        publish(args, role="test", ranks=SpawnRanks(world_rank=0))


def random_weight(n: int, k: int) -> torch.Tensor:
    return (torch.randn(n, k, device=DEVICE, dtype=BF16) * 0.02).contiguous()


def copy_of(layer: torch.nn.Module) -> types.SimpleNamespace:
    """A repacked layer whose weight and scales lie elsewhere in memory."""
    return types.SimpleNamespace(
        weight=layer.weight.clone(),
        weight_scale=layer.weight_scale.clone(),
        weight_global_scale=layer.weight_global_scale.clone(),
        workspace=layer.workspace,
        output_size_per_partition=layer.output_size_per_partition,
        input_size_per_partition=layer.input_size_per_partition,
    )


def dense(model: str, name: str, n: int, k: int, rate: float) -> None:
    def copies(size: int) -> int:
        return min(max(2, -(-COLD_BYTES // size)), 400)

    weight = random_weight(n, k)
    layer = torch.nn.Module()
    layer.weight = torch.nn.Parameter(weight.clone(), requires_grad=False)
    stored, _ = gdn_post_quant.MarlinNvfp4Quantizer().quantize(layer)
    fours = [copy_of(layer) for _ in range(copies(n * k // 2))]
    codes, scales, _ = fp8_post_quant.quantize_channels(weight)
    eights = [(codes.clone(), scales.clone()) for _ in range(copies(n * k))]
    halves = [weight.clone() for _ in range(copies(n * k * 2))]
    fp8_bytes, bf16_bytes = n * k + n * 4, n * k * 2
    from sglang.kernels.ops.gemm import fp8_scaled_mm

    for m in ROWS:
        x = torch.randn(m, k, device=DEVICE, dtype=BF16)
        q, s = fp8_post_quant.quantize_tokens(x)
        method = gdn_post_quant.MarlinPostQuantLinearMethod()
        calls = {
            "marlin_nvfp4": (stored, [lambda w=w: method.apply(w, x) for w in fours]),
            "fp8_scaled_mm": (fp8_bytes, [lambda w=w: fp8_scaled_mm(q, w[0].t(), s, w[1], out_dtype=BF16) for w in eights]),
            "fp8_scaled_mm+quant": (fp8_bytes, [lambda w=w: fp8_post_quant.linear(x, w[0], w[1]) for w in eights]),
            "torch._scaled_mm": (fp8_bytes, [
                lambda w=w: torch._scaled_mm(q, w[0].t(), scale_a=s, scale_b=w[1].t(), out_dtype=BF16, use_fast_accum=True)
                for w in eights
            ]),
            "bf16": (bf16_bytes, [lambda w=w: torch.nn.functional.linear(x, w) for w in halves]),
        }  # fmt: skip
        for arm, (size, list_of_calls) in calls.items():
            try:
                figures = measured(size, list_of_calls, rate)
            except Exception as error:
                if dry:
                    raise
                record(kind="dense", model=model, layer=name, n=n, k=k, m=m, arm=arm, error=str(error)[:200])
                continue
            record(
                kind="dense", model=model, layer=name, n=n, k=k, m=m, arm=arm, weight_bytes=size, **figures
            )


def marlin_experts(experts: int, hidden: int, intermediate: int) -> torch.nn.Module:
    """Random NVFP4 experts, repacked once and shared by all (contents do not change the time)."""
    layer = torch.nn.Module()
    layer.quant_config = types.SimpleNamespace(group_size=16)
    layer.moe_runner_config = types.SimpleNamespace(is_gated=True)
    layer.intermediate_size_per_partition, layer.params_dtype = intermediate, BF16
    for name, n, k in (("w13", 2 * intermediate, hidden), ("w2", hidden, intermediate)):
        packed = torch.randint(0, 256, (experts, n, k // 2), dtype=torch.uint8, device=DEVICE)
        scale = torch.randint(0x38, 0x48, (experts, n, k // 16), dtype=torch.uint8, device=DEVICE)
        for suffix, value in (
            ("weight", packed),
            ("weight_scale", scale.view(torch.float8_e4m3fn)),
            ("weight_scale_2", torch.full((experts,), 2.0**-8, device=DEVICE)),
        ):
            setattr(layer, f"{name}_{suffix}", torch.nn.Parameter(value, requires_grad=False))
    marlin.prepare_moe_nvfp4_layer_for_marlin(layer)
    return layer


def moe(model: str, experts: int, top_k: int, hidden: int, intermediate: int, rate: float) -> None:
    import gpu_parity

    config = MoeRunnerConfig(top_k=top_k, num_experts=experts)
    layer = marlin_experts(experts, hidden, intermediate)
    w13 = (torch.randn(experts, 2 * intermediate, hidden, device=DEVICE, dtype=BF16) * 0.02).contiguous()
    w2 = (torch.randn(experts, hidden, intermediate, device=DEVICE, dtype=BF16) * 0.02).contiguous()
    for m in ROWS:
        x = torch.randn(m, hidden, device=DEVICE, dtype=BF16)
        choices = []
        for seed in range(16):
            generator = torch.Generator(device=DEVICE).manual_seed(seed)
            logits = torch.randn(m, experts, generator=generator, device=DEVICE)
            weights, ids = torch.softmax(logits, -1).topk(top_k)
            choices.append((weights, ids.to(torch.int32)))
        touched = statistics.mean(len(ids.unique()) for _, ids in choices)
        values = touched * 3 * intermediate * hidden
        arms = {
            "marlin_nvfp4": (
                values * 9 / 16,
                [lambda c=c: gpu_parity.run_moe(layer, config, x, c[0], c[1]) for c in choices],
            ),
            "bf16 triton": (values * 2, [lambda c=c: triton_moe(x, w13, w2, c, config) for c in choices]),
        }
        for arm, (size, calls) in arms.items():
            try:
                figures = measured(size, calls, rate)
            except Exception as error:
                if dry:
                    raise
                record(kind="moe", model=model, m=m, arm=arm, error=str(error)[:300])
                continue
            record(
                kind="moe", model=model, experts=experts, top_k=top_k, hidden=hidden, intermediate=intermediate, m=m,
                arm=arm, experts_touched=touched, weight_bytes=int(size), **figures,
            )  # fmt: skip


def triton_moe(x, w13, w2, choice, config):
    from sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe import fused_experts
    from sglang.srt.layers.moe.topk import StandardTopKOutput

    weights, ids = choice
    logits = torch.zeros(x.shape[0], w13.shape[0], device=x.device)
    return fused_experts(x, w13, w2, StandardTopKOutput(weights, ids, logits), config)


def by_signature(real: Callable, answer: Callable) -> Callable:
    """``answer``, after the call was held to ``real``'s own signature."""

    def call(*args, **kwargs):
        inspect.signature(real).bind(*args, **kwargs)
        return answer(*args, **kwargs)

    return call


def without_a_gpu() -> None:
    """Every kernel that an arm calls becomes a twin on the CPU, for the rest of this process."""
    global DEVICE, dry
    import gpu_parity
    import marlin_twin
    import pytest

    import sglang.kernels.ops.gemm as gemm
    from sglang.srt.layers.moe.moe_runner.triton_utils import fused_moe

    DEVICE = gpu_parity.DEVICE = "cpu"
    dry = True
    twins.enter_context(marlin_twin.installed(pytest.MonkeyPatch()))

    def scaled_mm(a, b, scales_a, scales_b, out_dtype, bias=None):
        return ((a.float() @ b.float()) * scales_a * scales_b.reshape(1, -1)).to(out_dtype)

    gemm.fp8_scaled_mm = by_signature(gemm.fp8_scaled_mm, scaled_mm)
    fused_moe.fused_experts = by_signature(fused_moe.fused_experts, lambda x, *args: x.clone())
    torch._scaled_mm = lambda a, b, *, scale_a, scale_b, out_dtype, use_fast_accum: scaled_mm(
        a, b, scale_a, scale_b, out_dtype
    )


def main(words: Sequence[str] | None = None) -> int:
    global out
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", choices=("dense", "moe"))
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--dry", action="store_true")
    args = parser.parse_args(words)
    out, started = args.out, time.monotonic()
    sys.path.insert(0, str(Path(__file__).parent))
    torch.manual_seed(0)
    if args.dry:
        without_a_gpu()
    # the bench reads random codes: no scale needs moving
    marlin_scale_range.normalize = lambda block, scale: (block, scale)
    try:
        publish_config()
    except Exception as error:  # the BF16 experts alone need it
        if args.dry:
            raise
        record(kind="config", error=str(error)[:300])
    rate = 1.0
    if not args.dry:
        rate = copy_rate()
        torch.cuda.empty_cache()
        record(kind="copy", gpu=torch.cuda.get_device_name(), bytes_per_second=rate, torch=torch.__version__)
    experts, layers = (DRY_MOE, DRY_DENSE) if args.dry else (MOE, DENSE)
    jobs = [(moe, model, shape) for model, shape in experts.items() if args.only != "dense"]
    jobs += [
        (dense, model, shape) for model, shapes in layers.items() for shape in shapes if args.only != "moe"
    ]
    for count, (job, model, shape) in enumerate(jobs):
        if time.monotonic() - started > args.seconds:
            record(kind="cut", not_begun=len(jobs) - count)
            return 1
        try:
            job(model, *shape, rate)
        except Exception as error:
            if args.dry:
                raise
            record(kind=job.__name__, model=model, error=str(error)[:300])
        if not args.dry:
            torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
