# SPDX-License-Identifier: Apache-2.0
"""Lab: Qwen3.5's fused steps on a GPU: parity with float64, whole layers as one graph, each kernel alone.

``python3 test/bench/lab/qwen3_5_layers.py --parts check chain kernels --out results.jsonl``. Weights are
random and distinct for every layer, experts are chosen by the step itself, collectives are left out. Bytes
count weights of the distinct experts, states (read and written) and the cache.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import lab

lab.use_checkout()

from qwen3_5.checks import CHECKS  # noqa: E402
from qwen3_5.layer import Attention, Batch, Gdn, Moe, Source  # noqa: E402

from sglang.srt.mega.device import cuda  # noqa: E402
from sglang.srt.mega.models.qwen3_5.kernels import Kernels  # noqa: E402
from sglang.srt.mega.models.qwen3_5.shape import QWEN35_35B_A3B, QWEN35_397B_TP8, TINY, Shape  # noqa: E402
from sglang.srt.mega.models.qwen3_5.tactics import BUCKETS, ENTRIES, bucket_of, kernel_spec  # noqa: E402
from sglang.srt.mega.models.qwen3_5.workspace import Workspace  # noqa: E402

SHAPES = {"397B-TP8": QWEN35_397B_TP8, "35B-A3B": QWEN35_35B_A3B, "tiny": TINY}
GDN_ENTRIES = ("gdn_front", "gdn_step", "gdn_out")
ATTENTION_ENTRIES = ("attn_front", "attn_decode", "attn_merge", "attn_out")
MOE_ENTRIES = ("moe_route", "moe_up", "moe_down")
INTERVAL = 4  # every fourth layer has full attention


class Model:
    """Layers with their own weights and states, and the step over them."""

    def __init__(self, shape: Shape, layers: int, rows: int, context: int, seed: int = 0) -> None:
        source = Source("cuda", seed)
        self.shape, self.rows, self.context = shape, rows, context
        self.batch = Batch.random(shape, source, rows, [context] * rows)
        cache = rows * context + 1
        self.mixers = [
            Attention.random(shape, source, cache) if (i + 1) % INTERVAL == 0 else Gdn.random(shape, source)
            for i in range(layers)
        ]
        self.moes = [Moe.random(shape, source) for _ in range(layers)]
        self.hidden = source.normal(rows, shape.hidden)
        self.space = Workspace.allocate(shape, "cuda")

    def run(self, kernels: Kernels, entry: str, index: int) -> None:
        """One fused step of one layer."""
        space, batch, rows, moe = self.space, self.batch, self.rows, self.moes[index]
        layer, state = self.mixers[index], self.batch.state_index
        match entry:
            case "gdn_front":
                weights = (layer.norm, layer.w_qkvz, layer.w_ba, layer.conv_weight, layer.conv_state)
                kernels.gdn_front(space, *weights, state)
            case "gdn_step":
                kernels.gdn_step(space, layer.a_log, layer.dt_bias, layer.state, state)
            case "gdn_out":
                kernels.gdn_out(space, layer.out, layer.gated_norm, rows)
            case "attn_front":
                kernels.attn_front(space, layer.norm, layer.qkv, rows)
            case "attn_decode":
                place = (batch.cos_sin, batch.positions, None, batch.seq_lens, batch.req_to_token)
                where = (batch.req_index, batch.cache_slot, state)
                kernels.attn_decode(
                    space, layer.q_norm, layer.k_norm, *place, *where, layer.k_cache, layer.v_cache
                )
            case "attn_merge":
                kernels.attn_merge(space, rows)
            case "attn_out":
                kernels.attn_out(space, layer.out, rows)
            case "moe_route":
                kernels.moe_route(space, moe.norm, moe.router, moe.gate_up, moe.shared_gate, rows)
            case "moe_up":
                kernels.moe_up(space, moe.w13, state)
            case "moe_down":
                kernels.moe_down(space, moe.w2, moe.shared_down, state)
            case _:
                raise KeyError(entry)

    def entries(self, index: int) -> tuple[str, ...]:
        return (GDN_ENTRIES if isinstance(self.mixers[index], Gdn) else ATTENTION_ENTRIES) + MOE_ENTRIES

    def step(self, kernels: Kernels, after_layer: Callable[[], None] = lambda: None) -> None:
        kernels.stream_entry(self.hidden, None, self.space)
        for index in range(len(self.moes)):
            for entry in self.entries(index):
                self.run(kernels, entry, index)
            after_layer()

    def distinct_experts(self, kernels: Kernels) -> list[int]:
        """Experts that each layer's rows pick, counted once."""
        counts: list[int] = []

        def count() -> None:
            logits = self.space.logits[: self.rows, : self.shape.experts].float()
            counts.append(int(logits.topk(self.shape.top_k).indices.unique().numel()))

        self.step(kernels, count)
        return counts

    def bytes_of(self, experts: list[int]) -> int:
        shape, total = self.shape, 0
        for mixer, count in zip(self.mixers, experts, strict=True):
            linear = isinstance(mixer, Gdn)
            total += shape.weight_bytes(linear, count)
            total += self.rows * (shape.state_bytes() if linear else 2 * self.context * shape.kv_heads * 512)
        return total

    def launches(self) -> float:
        return sum(len(self.entries(i)) for i in range(len(self.moes))) / len(self.moes)


def check(shapes: list[str]) -> None:
    """Every step in every width, with padding, against float64 on the device."""
    for name in shapes:
        for variant in (SHAPES[name], replace(SHAPES[name], state_bf16=True, mrope=True)):
            kernels = Kernels(variant, "cuda")
            chosen = CHECKS if not variant.state_bf16 else {k: CHECKS[k] for k in ("gdn_step", "attn_decode")}
            for seed, (rows, padding) in enumerate(((1, ()), (2, (0,)), (3, ()), (5, (1, 4)), (8, ()))):
                for step, function in chosen.items():
                    try:
                        function(kernels, seed, rows, padding)
                    except AssertionError as error:
                        print(f"FAIL {name} {step} rows {rows}: {error}", flush=True)
        print(f"checked {name}", flush=True)


def measure_chain(
    rows_out: lab.Rows, name: str, layers: int, widths: list[int], copy: float, variants: Mapping[str, dict]
) -> None:
    """Layers alone as one graph, each width and variant."""
    chosen_carveout = cuda.CARVEOUT
    for width in widths:
        model = Model(SHAPES[name], layers, width, 1024)
        for label, options in variants.items():
            options = dict(options)
            cuda.CARVEOUT = options.pop("carveout", chosen_carveout)
            kernels = Kernels(SHAPES[name], "cuda", (bucket_of(width),), **options)
            cuda.CARVEOUT = chosen_carveout
            experts = model.distinct_experts(kernels)
            size = model.bytes_of(experts)
            graph = lab.capture(lambda k=kernels, m=model: m.step(k))
            result = lab.summary(lab.replay_times(graph, 40))
            tb_s = size / result["median_us"] / 1e6
            print(
                f"{name} rows {width} {label:28} {result['median_us'] / layers:7.2f} us a layer "
                f"{size / layers / 1e6:6.1f} MB {tb_s:5.2f} TB/s {tb_s / copy:5.1%} of copy, "
                f"{sum(experts) / layers:.1f} experts, finite {bool(model.space.x[:width].isfinite().all())}",
                flush=True,
            )
            rows_out.add(
                family="qwen3_5",
                slice=name,
                layers=layers,
                weights="bf16",
                kv="bf16",
                mode="decode",
                rows=width,
                arm="mega",
                variant=label,
                launches_per_layer=model.launches(),
                weight_bytes=size,
                copy_tb_s=copy,
                fraction_of_copy=tb_s / copy,
                layers_median_us=result["median_us"],
                **result,
            )


def measure_kernels(
    rows_out: lab.Rows, name: str, widths: list[int], changes: Mapping[str, list[dict[str, int]]], pdl: bool
) -> None:
    """Chains of one kernel over layers with distinct weights: a launch among its own kind."""
    shape = SHAPES[name]
    for width in widths:
        model = Model(shape, 16, width, 1024)
        base = Kernels(shape, "cuda", (width,))
        model.step(base)
        for entry in ENTRIES[1:]:
            layers = [i for i in range(len(model.moes)) if entry in model.entries(i)]
            for change in [{}, *changes.get(entry, [])]:
                kernels = Kernels(shape, "cuda", (width,), (entry,), pdl=pdl, changes={entry: change})
                base.stream_entry(model.hidden, None, model.space)
                result = chain_of_one(model, kernels, entry, layers)
                print(
                    f"{name} rows {width} {entry:12} {change or ''!s:28} {result['median_us']:6.2f} us",
                    flush=True,
                )
                rows_out.add(
                    family="qwen3_5", slice=name, kernel=entry, rows=width, changes=change, pdl=pdl, **result
                )


def chain_of_one(model: Model, kernels: Kernels, entry: str, layers: list[int]) -> dict[str, float]:
    """Microseconds a launch."""
    order = layers * max(1, 12 // len(layers))

    def chain() -> None:
        for index in order:
            model.run(kernels, entry, index)

    return lab.summary([t / len(order) for t in lab.replay_times(lab.capture(chain), 15)])


TRIALS = {
    "397B-TP8": {
        "gdn_front": [{"DEPTH": 4, "BLOCKS": 3}, {"DEPTH": 6, "BLOCKS": 2}],
        "gdn_out": [{"BLOCKS": 3}],
        "attn_front": [{"DEPTH": 4, "BLOCKS": 3}],
        "moe_route": [{"DEPTH": 8, "BLOCKS": 1}],
        "moe_up": [{"DEPTH": 4, "BLOCKS": 2}],
    },
    "35B-A3B": {
        "gdn_front": [{"DEPTH": 4, "BLOCKS": 3}, {"DEPTH": 4, "BLOCKS": 4}, {"DEPTH": 2, "BLOCKS": 4}],
        "gdn_out": [{"DEPTH": 4, "BLOCKS": 2}],
        "attn_front": [{"DEPTH": 4, "BLOCKS": 3}, {"DEPTH": 4, "BLOCKS": 4}],
        "attn_out": [{"DEPTH": 16, "BLOCKS": 1}],
        "moe_up": [{"DEPTH": 4, "BLOCKS": 3}],
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--parts", nargs="+", choices=("check", "chain", "kernels"), default=["check", "chain"]
    )
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=["397B-TP8", "35B-A3B"])
    parser.add_argument("--widths", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--no-pdl", action="store_true", help="also measure with PDL off")
    parser.add_argument("--carveouts", nargs="*", type=int, default=[], help="shares of shared memory to try")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    started = time.perf_counter()
    rows_out = lab.Rows(chosen.out)
    wanted = []
    for name in chosen.shapes:
        for variant in (SHAPES[name], replace(SHAPES[name], state_bf16=True, mrope=True)):
            wanted += [kernel_spec(entry, variant, bucket) for entry in ENTRIES for bucket in BUCKETS]
        if "kernels" in chosen.parts:
            wanted += [
                kernel_spec(entry, SHAPES[name], width, change)
                for entry, changes in TRIALS.get(name, {}).items()
                for change in changes
                for width in chosen.widths
            ]
    print(f"compiled in {lab.compile_ahead(wanted):.0f} s", flush=True)
    if "check" in chosen.parts:
        check(chosen.shapes)
        print(f"at {time.perf_counter() - started:.0f} s", flush=True)
    if "chain" in chosen.parts:
        copy = lab.copy_tb_s()
        print(f"copy {copy:.2f} TB/s", flush=True)
        variants = {"pdl": {}, **({"no pdl": {"pdl": False}} if chosen.no_pdl else {})}
        variants |= {f"carveout {percent} %": {"carveout": percent} for percent in chosen.carveouts}
        for name in chosen.shapes:
            measure_chain(rows_out, name, chosen.layers, chosen.widths, copy, variants)
        print(f"at {time.perf_counter() - started:.0f} s", flush=True)
    if "kernels" in chosen.parts:
        for name in chosen.shapes:
            measure_kernels(rows_out, name, chosen.widths[:1], TRIALS.get(name, {}), True)
        print(f"at {time.perf_counter() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
