# SPDX-License-Identifier: Apache-2.0
"""Lab: GLM's sparse attention and V4.1's hyper-connection seam on a GPU: parity with float64, then time.

``python3 test/bench/lab/glm_deepseek.py --parts check mla mhc --out results.jsonl``. A step is a chain of
layers with their own caches and weights, larger than the L2, as one graph. Bytes of the attention are the
chosen cache rows; of the seam, the projection's weights and the streams read and written.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

import lab
import torch

lab.use_checkout()

from deepseek_v4 import checks as mhc_checks  # noqa: E402
from glm_moe_dsa import checks as mla_checks  # noqa: E402

from sglang.srt.mega.models.deepseek_v4 import tactics as mhc  # noqa: E402
from sglang.srt.mega.models.deepseek_v4.kernels import HyperConnection, Mix  # noqa: E402
from sglang.srt.mega.models.glm_moe_dsa import tactics as mla  # noqa: E402
from sglang.srt.mega.models.glm_moe_dsa.kernels import SparseMla  # noqa: E402

CONTEXT = 16384  # tokens that a row chooses from
LAYERS = 12
MLA_SHAPES = {
    "GLM-5 TP8, FP8": mla.GLM5_TP8,
    "GLM-5 TP8, BF16": replace(mla.GLM5_TP8, fp8=False),
    "GLM-5 TP4, FP8": replace(mla.GLM5_TP8, heads=16),
}


def check() -> None:
    """Both kernels against float64 at production sizes; prints the largest error of each."""
    for name, shape in MLA_SHAPES.items():
        attention = SparseMla(shape, "cuda")
        worst = [
            mla_checks.check(attention, seed, chosen, tokens=5000, spread=2.0)
            for seed, chosen in enumerate(
                ([2048], [1, 0, 2047, 333], [2048] * 6, [2048] * 8, [100] * 16, [2048] * 16)
            )
        ]
        print(f"checked {name}: {max(worst):.2e} of the norm", flush=True)
    seam = HyperConnection(mhc.V41_FLASH, "cuda")
    for rows in (1, 6, 12, 48, 96, 384):
        errors = mhc_checks.check(seam, rows, rows)
        print(f"checked mHC, {rows} rows: {', '.join(f'{k} {v:.1e}' for k, v in errors.items())}", flush=True)


class Attention:
    """``LAYERS`` caches of their own, each row choosing among its own tokens."""

    def __init__(self, shape: mla.Shape, rows: int) -> None:
        generator = torch.Generator("cuda").manual_seed(rows)
        self.shape, self.rows = shape, rows
        self.query = torch.randn(shape.heads, rows, mla.LATENT, device="cuda").bfloat16().transpose(0, 1)
        self.rotated = torch.randn(rows, shape.heads, mla.ROPE, device="cuda").bfloat16()
        self.caches = [self.cache() for _ in range(LAYERS)]
        places = torch.rand(rows, CONTEXT, device="cuda", generator=generator).argsort(-1)
        offsets = CONTEXT * torch.arange(rows, device="cuda")[:, None]
        self.chosen = (places[:, : shape.top_k] + offsets).to(torch.int32)
        self.out = torch.empty(rows, shape.heads, mla.LATENT, dtype=torch.bfloat16, device="cuda")

    def cache(self) -> torch.Tensor:
        tokens = self.rows * CONTEXT
        if not self.shape.fp8:
            return torch.randn(tokens, mla.LATENT + mla.ROPE, device="cuda").bfloat16()
        rows = torch.randint(0, 120, (tokens, self.shape.row_bytes), dtype=torch.uint8, device="cuda")
        rows[:, 512:528] = torch.full((tokens, 4), 0.01, device="cuda").view(torch.uint8)
        rows[:, 528:] = torch.randn(tokens, 64, device="cuda").bfloat16().view(torch.uint8)
        return rows

    def step(self, attention: SparseMla, share: int | None) -> None:
        for cache in self.caches:
            attention(self.query, self.rotated, cache, self.chosen, mla_checks.SCALE, self.out, share)

    @property
    def bytes(self) -> int:
        return self.rows * self.shape.top_k * self.shape.row_bytes


def measure_mla(rows_out: lab.Rows, widths: Iterable[int], copy: float) -> None:
    for name, shape in MLA_SHAPES.items():
        kernels = {True: SparseMla(shape, "cuda"), False: SparseMla(shape, "cuda", pdl=False)}
        for rows in widths:
            model = Attention(shape, rows)
            usual = mla.splits(shape, rows)
            shares = [usual] if "TP4" in name else sorted({usual, usual // 2, usual // 4} - {0})
            for share in shares:
                times = report(partial(model.step, kernels[True], share), LAYERS)
                rate = model.bytes / times["median_us"] / 1e6
                print(
                    f"{name} {rows:2} rows {share:3} splits {times['median_us']:7.2f} us {rate:5.2f} TB/s "
                    f"({rate / copy:.0%} of copy)",
                    flush=True,
                )
                rows_out.add(part="mla", slice=name, rows=rows, splits=share, pdl=True, **times)
            times = report(partial(model.step, kernels[False], usual), LAYERS)
            print(
                f"{name} {rows:2} rows {usual:3} splits {times['median_us']:7.2f} us without PDL", flush=True
            )
            rows_out.add(part="mla", slice=name, rows=rows, splits=usual, pdl=False, **times)


class Seams:
    """The seams of a whole model, each feeding the next."""

    count = 80

    def __init__(self, shape: mhc.Shape, rows: int) -> None:
        hidden, self.rows = shape.hidden, rows
        self.x = torch.randn(rows, hidden, device="cuda").bfloat16()
        self.fn = [torch.randn(24, 4 * hidden, device="cuda") * hidden**-0.5 for _ in range(self.count)]
        self.mix_scale, self.base = torch.full((3,), 0.5, device="cuda"), torch.randn(24, device="cuda")
        self.weight = torch.ones(hidden, dtype=torch.bfloat16, device="cuda")
        self.streams = [torch.randn(rows, 4, hidden, device="cuda").bfloat16() for _ in range(2)]
        self.normed = torch.empty(rows, hidden, dtype=torch.bfloat16, device="cuda")
        self.mixes = [
            Mix(*(torch.rand(rows, *size, device="cuda") / 4 for size in ((4,), (4,), (4, 4))))
            for _ in range(2)
        ]

    def step(self, seam: HyperConnection) -> None:
        for i, fn in enumerate(self.fn):
            a, b = i % 2, 1 - i % 2
            norm = (self.mix_scale, self.base, self.weight)
            seam(
                self.x, self.streams[a], self.mixes[a], fn, *norm, self.streams[b], self.normed, self.mixes[b]
            )

    def bytes(self, hidden: int) -> int:
        return 24 * 4 * hidden * 4 + self.rows * hidden * 2 * (1 + 4 + 4 + 1)


def measure_mhc(rows_out: lab.Rows, widths: Iterable[int], copy: float) -> None:
    for width in (32, 40, 64):
        shape = replace(mhc.V41_FLASH, slice=width)
        kernels = {True: HyperConnection(shape, "cuda"), False: HyperConnection(shape, "cuda", pdl=False)}
        for rows in widths:
            model = Seams(shape, rows)
            for pdl in (True, False) if width == mhc.V41_FLASH.slice else (True,):
                times = report(partial(model.step, kernels[pdl]), Seams.count)
                rate = model.bytes(shape.hidden) / times["median_us"] / 1e6
                print(
                    f"mHC {rows:3} rows, slices of {width} {times['median_us']:6.2f} us {rate:5.2f} TB/s "
                    f"({rate / copy:.0%} of copy){'' if pdl else ' without PDL'}",
                    flush=True,
                )
                rows_out.add(part="mhc", slice=width, rows=rows, pdl=pdl, **times)


def report(step: Callable[[], None], parts: int) -> dict[str, float]:
    """Microseconds of one of the step's equal parts."""
    summary = lab.summary(lab.replay_times(lab.capture(step)))
    return {name: value / parts for name, value in summary.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", default=["check", "mla", "mhc"])
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    specs = [mla.kernel_spec(entry, shape) for shape in MLA_SHAPES.values() for entry in mla.ENTRIES]
    for width in (32, 40, 64):
        shape = replace(mhc.V41_FLASH, slice=width)
        specs += [mhc.kernel_spec("mhc_post", shape, bucket) for bucket in mhc.BUCKETS]
        specs.append(mhc.kernel_spec("mhc_finish", shape, mhc.BUCKETS[0]))
    print(f"compiled in {lab.compile_ahead(specs):.1f} s", flush=True)
    rows_out, copy = lab.Rows(chosen.out), lab.copy_tb_s()
    print(f"copy {copy:.2f} TB/s", flush=True)
    if "check" in chosen.parts:
        check()
    if "mla" in chosen.parts:
        measure_mla(rows_out, (1, 2, 4, 8, 16), copy)
    if "mhc" in chosen.parts:
        measure_mhc(rows_out, (1, 6, 12, 24, 48), copy)


if __name__ == "__main__":
    main()
