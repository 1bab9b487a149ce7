# SPDX-License-Identifier: Apache-2.0
"""Lab: small-M products in BF16, FP8 and NVFP4 on row-major weights through mma.sync, beside torch.mm.

``python3 test/bench/lab/products.py --out results.jsonl`` on a GPU; ``--emulate`` holds the same kernel to
float64 in the CPU emulator at a small shape and measures nothing. Each chain has its own weights for every
product (more than the L2 holds) and is one CUDA graph.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import lab
import torch

lab.use_checkout()

from sglang.srt.mega.device.spec import KernelSpec, LaunchConfig  # noqa: E402

FORMATS = ("bf16", "fp8", "nvfp4")
SHAPES = ((768, 4096), (4096, 1024), (2560, 4096), (4096, 8192))
ROWS = (1, 4, 8, 16)
SHARED_LIMIT = 200 * 1024  # bytes a block, less than sm_90's 227 KB by what the sums take
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)


@dataclass
class Weights:
    """Random weights [N, K] of a format as the kernel reads them; ``exact`` is their value in float64."""

    format: str
    data: torch.Tensor
    scales: torch.Tensor | None = None
    row_scale: torch.Tensor | None = None
    global_scale: float = 1.0

    @classmethod
    def random(cls, form: str, n: int, k: int, device: str) -> Weights:
        if form == "bf16":
            return cls(form, torch.randn(n, k, device=device, dtype=torch.bfloat16))
        if form == "fp8":
            data = torch.randn(n, k, device=device).mul_(100).clamp_(-448, 448).to(torch.float8_e4m3fn)
            return cls(form, data, row_scale=torch.rand(n, device=device) * 0.01)
        data = torch.randint(0, 256, (n, k // 2), device=device, dtype=torch.uint8)
        scales = torch.rand(n, k // 16, device=device).mul_(448).pow_(2).div_(448).to(torch.float8_e4m3fn)
        return cls(form, data, scales=scales, global_scale=1 / 512)

    def exact(self) -> torch.Tensor:
        if self.format == "bf16":
            return self.data.double().cpu()
        if self.format == "fp8":
            return self.data.cpu().float().double() * self.row_scale.double().cpu()[:, None]
        data = self.data.cpu()
        values = torch.stack([E2M1[(data & 15).long()], E2M1[(data >> 4).long()]], dim=-1).flatten(1)
        blocks = self.scales.cpu().float().double().repeat_interleave(16, dim=1)
        return values * blocks * self.global_scale

    @property
    def bytes(self) -> int:
        return self.data.numel() * self.data.element_size() + (
            0 if self.scales is None else self.scales.numel()
        )


def spec(form: str, rows: int, n: int, k: int, depth: int, blocks: int) -> KernelSpec:
    source = str(Path(__file__).parent / "csrc" / "products.cuh")
    constants = {
        "FORMAT": FORMATS.index(form),
        "ROWS": rows,
        "N": n,
        "K": k,
        "DEPTH": depth,
        "BLOCKS": blocks,
    }
    return KernelSpec.of(source, "product", constants)


def shared_bytes(rows: int, k: int) -> int:
    """Of the staged activations: eight runs of k, padded by 64 bytes each."""
    return 2 * rows * (k // 8 + 32) * 8


def launch(kernel: object, w: Weights, x: torch.Tensor, y: torch.Tensor, pdl: bool = True) -> None:
    rows, k = x.shape
    config = LaunchConfig((y.shape[1] // 16, 1, 1), 256, shared_bytes=shared_bytes(rows, k), pdl=pdl)
    kernel.launch(config, x, w.data, w.scales, w.row_scale, y, w.global_scale)


def activations(form: str, rows: int, k: int, device: str) -> torch.Tensor:
    return torch.randn(rows, k, device=device, dtype=torch.bfloat16 if form == "bf16" else torch.float16)


def check(make_kernel, form: str, rows: int, n: int, k: int, device: str) -> float:
    """Largest error against float64, relative to the largest value; the output is poisoned first."""
    w, x = Weights.random(form, n, k, device), activations(form, rows, k, device)
    y = torch.full((rows, n), float("nan"), device=device)
    launch(make_kernel(spec(form, rows, n, k, 4, 1)), w, x, y)
    wanted = x.double().cpu() @ w.exact().T
    error = ((y.double().cpu() - wanted).abs().max() / wanted.abs().max()).item()
    if not error < 1e-5:
        raise AssertionError(f"{form}, {rows} rows, {n} x {k}: error {error}")
    return error


def measure(rows_out: lab.Rows, copy: float) -> None:
    from sglang.srt.mega.device.cuda import CudaKernel

    device = torch.device("cuda")
    cases = [
        (f, m, n, k) for n, k in SHAPES for f in FORMATS for m in ROWS if shared_bytes(m, k) <= SHARED_LIMIT
    ]
    tactics = {"bf16": (8, 1), "fp8": (8, 1), "nvfp4": (4, 2)}
    print(f"compiled in {lab.compile_ahead([spec(*c, *tactics[c[0]]) for c in cases]):.0f} s")
    for form, m, n, k in cases:
        count = max(24, int(1.6e8 / (n * k * (2, 1, 0.5625)[FORMATS.index(form)])))
        weights = [Weights.random(form, n, k, "cuda") for _ in range(count)]
        x, y = activations(form, m, k, "cuda"), torch.empty(m, n, device="cuda")
        kernel = CudaKernel(spec(form, m, n, k, *tactics[form]), device)
        times = {}
        for pdl in (True, False):
            graph = lab.capture(lambda: [launch(kernel, w, x, y, pdl) for w in weights])  # noqa: B023
            times["pdl" if pdl else "no_pdl"] = lab.summary(lab.replay_times(graph, 40))
        if form == "bf16":
            graph = lab.capture(lambda: [torch.mm(x, w.data.t()) for w in weights])  # noqa: B023
            times["torch_mm"] = lab.summary(lab.replay_times(graph, 40))
        row = {arm: round(t["median_us"] / count, 3) for arm, t in times.items()}
        tb_s = weights[0].bytes / row["pdl"] / 1e6
        rows_out.add(
            part="products", weights=form, rows=m, n=n, k=k, us=row, tb_s=tb_s, fraction_of_copy=tb_s / copy
        )
        print(
            f"{form:6} rows {m:2} {n}x{k}: {row}  {tb_s:.2f} TB/s, {100 * tb_s / copy:.0f} % of copy",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--emulate", action="store_true")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    seed = torch.seed() % 2**31
    torch.manual_seed(seed)
    if arguments.emulate:
        from sglang.srt.mega.device.emulator import EmulatedKernel as Kernel

        make = Kernel
        device = "cpu"
    else:
        from sglang.srt.mega.device.cuda import CudaKernel

        device = "cuda"

        def make(s: KernelSpec) -> CudaKernel:
            return CudaKernel(s, torch.device("cuda"))

    worst = max(
        check(make, form, rows, n, k, device)
        for form in FORMATS
        for rows, n, k in ((1, 32, 1024), (3, 16, 1024), (8, 16, 2048), (16, 16, 1024))
    )
    print(f"seed {seed}: worst error against float64 {worst:.1e}", flush=True)
    if not arguments.emulate:
        rows_out = lab.Rows(arguments.out)
        copy = lab.copy_tb_s()
        print(f"copy {copy:.2f} TB/s", flush=True)
        rows_out.add(part="products_check", seed=seed, worst_error=worst, copy_tb_s=copy)
        measure(rows_out, copy)


if __name__ == "__main__":
    main()
