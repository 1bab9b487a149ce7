# SPDX-License-Identifier: Apache-2.0
"""Lab: a data-dependent mixture of experts for one row, as three launches and as one with two grid barriers.

``python3 test/bench/lab/moe.py --out results.jsonl`` on a GPU; ``--emulate`` checks both forms on the CPU.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import lab
import torch

lab.use_checkout()

from sglang.srt.mega.device.spec import KernelSpec, LaunchConfig  # noqa: E402

SHAPES = {"397B-TP8": (4096, 512, 10, 128), "35B-A3B": (2048, 256, 8, 512)}  # hidden, experts, top-k, inter
LAYERS = 16


def spec(entry: str, shape: tuple[int, ...]) -> KernelSpec:
    source = str(Path(__file__).parent / "csrc" / "moe.cuh")
    return KernelSpec.of(
        source, entry, dict(zip(("HIDDEN", "EXPERTS", "TOP_K", "INTER"), shape, strict=True))
    )


class Layers:
    """Layers with their own experts; every layer reads the same row."""

    def __init__(self, make, shape: tuple[int, ...], layers: int, device: str) -> None:
        hidden, experts, top_k, inter = self.shape = shape
        self.kernels = {entry: make(spec(entry, shape)) for entry in ("route", "up", "down", "whole")}

        def normal(*size: int) -> torch.Tensor:
            return torch.randn(layers, *size, device=device, dtype=torch.bfloat16) * size[-1] ** -0.5

        self.router, self.w13 = normal(experts, hidden), normal(experts, 2 * inter, hidden)
        self.w2 = normal(experts, hidden, inter)
        self.x = torch.randn(hidden, device=device).bfloat16()
        self.logits = torch.empty(layers, experts, device=device, dtype=torch.bfloat16)
        self.act = torch.empty(top_k, inter, device=device, dtype=torch.bfloat16)
        self.y = torch.empty(layers, hidden, device=device)
        self.state = torch.zeros(1, dtype=torch.int32, device=device)
        self.arrivals = torch.zeros(1, dtype=torch.int32, device=device)

    def arguments(self, i: int) -> tuple[torch.Tensor, ...]:
        weights = (self.x, self.router[i], self.w13[i], self.w2[i])
        return (*weights, self.logits[i], self.act, self.y[i], self.state)

    def three(self, pdl: bool = True) -> None:
        hidden, experts, top_k, inter = self.shape
        grids = {"route": experts // 16, "up": top_k * inter // 8, "down": hidden // 16}
        for i in range(len(self.y)):
            for entry, grid in grids.items():
                self.kernels[entry].launch(LaunchConfig((grid, 1, 1), 256, pdl=pdl), *self.arguments(i))

    def one(self, blocks: int, pdl: bool = True) -> None:
        for i in range(len(self.y)):
            config = LaunchConfig((blocks, 1, 1), 256, pdl=pdl, cooperative=not pdl)
            self.kernels["whole"].launch(config, *self.arguments(i), self.arrivals)

    def reference(self, i: int) -> torch.Tensor:
        """float64, the experts taken from the BF16 logits that the kernel wrote (checked beside)."""
        _, experts, top_k, _ = self.shape
        x = self.x.double()
        exact = self.router[i].double() @ x
        if not (self.logits[i].double() - exact).abs().max() < 2**-8 * exact.abs().max():
            raise AssertionError("logits differ from float64")
        order = sorted(range(experts), key=lambda e: (-self.logits[i, e].item(), e))[:top_k]
        shares = torch.softmax(self.logits[i, order].double(), dim=0)
        total = torch.zeros_like(x)
        for share, expert in zip(shares, order, strict=True):
            gate, up = (self.w13[i, expert].double() @ x).bfloat16().double().chunk(2)
            act = (torch.nn.functional.silu(gate) * up).bfloat16().double()
            total += self.w2[i, expert].double() @ (act * share)
        return total

    def bytes(self) -> int:
        hidden, experts, top_k, inter = self.shape
        return 2 * hidden * (experts + 3 * top_k * inter)


def check(layers: Layers, blocks: int) -> float:
    worst = 0.0
    for form in (layers.three, lambda: layers.one(blocks), lambda: layers.one(blocks, pdl=False)):
        for buffer in (layers.logits, layers.act, layers.y):
            buffer.fill_(float("nan"))
        form()
        for i in range(len(layers.y)):
            wanted = layers.reference(i)
            worst = max(worst, ((layers.y[i].double() - wanted).abs().max() / wanted.abs().max()).item())
    if not worst < 2**-7:
        raise AssertionError(f"{layers.shape}: error {worst}")
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--emulate", action="store_true")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.emulate:
        from sglang.srt.mega.device.emulator import EmulatedKernel

        for shape in ((256, 24 * 16, 5, 256), (512, 32, 2, 128)):
            print(f"{shape}: error {check(Layers(EmulatedKernel, shape, 2, 'cpu'), 7):.1e}")
        return

    from sglang.srt.mega.device.cuda import CudaKernel

    rows, copy = lab.Rows(arguments.out), lab.copy_tb_s()
    blocks = torch.cuda.get_device_properties(0).multi_processor_count
    lab.compile_ahead([spec(e, s) for s in SHAPES.values() for e in ("route", "up", "down", "whole")])
    for name, shape in SHAPES.items():
        layers = Layers(lambda s: CudaKernel(s, torch.device("cuda")), shape, LAYERS, "cuda")
        error = check(layers, blocks)
        forms = {
            "three_pdl": lambda: layers.three(),  # noqa: B023
            "three": lambda: layers.three(pdl=False),  # noqa: B023
            "one_pdl": lambda: layers.one(blocks),  # noqa: B023
            "one_cooperative": lambda: layers.one(blocks, pdl=False),  # noqa: B023
        }
        graphs = {arm: lab.capture(form) for arm, form in forms.items()}
        times: dict[str, list[float]] = {arm: [] for arm in graphs}
        for _ in range(4):
            for arm, graph in graphs.items():
                times[arm] += lab.replay_times(graph, 10)
        us = {arm: round(lab.summary(t)["median_us"] / LAYERS, 2) for arm, t in times.items()}
        tb_s = {arm: round(layers.bytes() / t / 1e6, 2) for arm, t in us.items()}
        rows.add(part="one_launch_moe", slice=name, rows=1, us=us, tb_s=tb_s, copy_tb_s=copy, error=error)
        print(f"{name}: us {us}, TB/s {tb_s}, copy {copy:.2f}, error {error:.1e}", flush=True)


if __name__ == "__main__":
    main()
