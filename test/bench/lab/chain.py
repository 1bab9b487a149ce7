# SPDX-License-Identifier: Apache-2.0
"""Lab: a chain of launches under programmatic dependent launch beside one persistent kernel, same products.

``python3 test/bench/lab/chain.py --out results.jsonl`` on a GPU; ``--emulate`` checks both forms on the CPU.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import lab
import torch

lab.use_checkout()

from sglang.srt.mega.device.spec import KernelSpec, LaunchConfig  # noqa: E402

SHAPES = ((4096, 768), (4096, 2560), (2048, 1024))  # hidden, inner
ROWS = (1, 8)
PAIRS = 24


class Chain:
    """PAIRS pairs of products with their own weights, in both forms, on one device."""

    def __init__(self, make, hidden: int, inner: int, rows: int, pairs: int, device: str) -> None:
        self.hidden, self.inner, self.rows, self.pairs = hidden, inner, rows, pairs
        self.w = torch.randn(pairs, 2, inner * hidden, device=device).bfloat16()
        self.w[:, 0] *= hidden**-0.5
        self.w[:, 1] *= inner**-0.5
        self.x = torch.empty(rows, hidden, device=device, dtype=torch.bfloat16)
        self.h = torch.empty(rows, inner, device=device, dtype=torch.bfloat16)
        self.arrivals = torch.zeros(1, device=device, dtype=torch.int32)
        kernels = {entry: make(spec(entry, hidden, inner, rows)) for entry in ("up", "down", "persistent")}
        self.up, self.down, self.whole = kernels["up"], kernels["down"], kernels["persistent"]
        self.shared = 2 * rows * (max(hidden, inner) // 8 + 32) * 8

    def launches(self, pdl: bool) -> None:
        for w_up, w_down in self.w:
            for kernel, w, x, y in ((self.up, w_up, self.x, self.h), (self.down, w_down, self.h, self.x)):
                kernel.launch(LaunchConfig((y.shape[1] // 16, 1, 1), 256, self.shared, pdl=pdl), w, x, y)

    def persistent(self, blocks: int, work: int = 1) -> None:
        config = LaunchConfig((blocks, 1, 1), 256, self.shared, pdl=False, cooperative=True)
        self.whole.launch(config, self.w, self.x, self.h, self.arrivals, self.pairs, work)

    def reference(self, x: torch.Tensor) -> torch.Tensor:
        """The chain in float64 with the kernels' rounding to BF16 after each product."""
        x = x.double()
        for w_up, w_down in self.w.double():
            h = (x @ w_up.view(self.inner, self.hidden).T).bfloat16().double()
            x = (h @ w_down.view(self.hidden, self.inner).T).bfloat16().double()
        return x

    @property
    def bytes(self) -> int:
        return self.w.numel() * 2


def spec(entry: str, hidden: int, inner: int, rows: int) -> KernelSpec:
    source = str(Path(__file__).parent / "csrc" / "chain.cuh")
    sizes = {"HIDDEN": hidden, "INNER": inner, "ROWS": rows, "DEPTH": 16}
    return KernelSpec.of(source, entry, {**sizes, "PERSISTENT": int(entry == "persistent")})


def check(chain: Chain, blocks: int) -> float:
    start = torch.randn_like(chain.x)
    wanted, worst = chain.reference(start), 0.0
    for form in (
        lambda: chain.launches(True),
        lambda: chain.persistent(blocks),
        lambda: chain.persistent(blocks),
    ):
        chain.x.copy_(start)
        chain.h.fill_(float("nan"))
        form()
        error = ((chain.x.double() - wanted).abs().max() / wanted.abs().max()).item()
        worst = max(worst, error)
    # a product that falls between two BF16 numbers may round either way, and every pair passes that on
    if not worst < 2**-7 * chain.pairs**0.5:
        raise AssertionError(f"chain {chain.hidden}, {chain.inner}, {chain.rows} rows: error {worst}")
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--emulate", action="store_true")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.emulate:
        from sglang.srt.mega.device.emulator import EmulatedKernel

        for rows in (1, 5):
            print(f"{rows} rows: error {check(Chain(EmulatedKernel, 256, 512, rows, 3, 'cpu'), 6):.1e}")
        return

    from sglang.srt.mega.device.cuda import CudaKernel

    rows_out, copy = lab.Rows(arguments.out), lab.copy_tb_s()
    blocks = torch.cuda.get_device_properties(0).multi_processor_count
    entries = ("up", "down", "persistent")
    lab.compile_ahead([spec(e, *shape, rows) for shape in SHAPES for rows in ROWS for e in entries])
    for hidden, inner in SHAPES:
        for rows in ROWS:
            chain = Chain(lambda s: CudaKernel(s, torch.device("cuda")), hidden, inner, rows, PAIRS, "cuda")
            error = check(chain, blocks)
            forms = {
                "pdl": lambda: chain.launches(True),  # noqa: B023
                "no_pdl": lambda: chain.launches(False),  # noqa: B023
                "persistent": lambda: chain.persistent(blocks),  # noqa: B023
                "barriers": lambda: chain.persistent(blocks, 0),  # noqa: B023
            }
            graphs = {name: lab.capture(form) for name, form in forms.items()}
            times: dict[str, list[float]] = {name: [] for name in graphs}
            for _ in range(4):
                for name, graph in graphs.items():
                    times[name] += lab.replay_times(graph, 10)
            pair_us = {name: round(lab.summary(t)["median_us"] / PAIRS, 2) for name, t in times.items()}
            tb_s = {
                name: round(chain.bytes / PAIRS / pair_us[name] / 1e6, 2) for name in ("pdl", "persistent")
            }
            rows_out.add(
                part="persistent", hidden=hidden, inner=inner, rows=rows, us_a_pair=pair_us, tb_s=tb_s,
                copy_tb_s=copy, error=error,
            )  # fmt: skip
            print(
                f"{hidden} {inner} rows {rows}: us a pair {pair_us}, TB/s {tb_s}, error {error:.1e}",
                flush=True,
            )


if __name__ == "__main__":
    main()
