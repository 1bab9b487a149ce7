# SPDX-License-Identifier: Apache-2.0
"""Lab: programmatic dependent launch, clusters and cooperative launches under graph capture, combined.

``python3 test/bench/lab/attributes.py --out results.jsonl`` on a GPU. A chain of counting kernels is captured
with each set of attributes and replayed; the counts prove that every launch ran in order.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path

import lab
import torch

lab.use_checkout()

from sglang.srt.mega.device.cuda import CudaError, CudaKernel  # noqa: E402
from sglang.srt.mega.device.spec import KernelSpec, LaunchConfig  # noqa: E402

BLOCKS, LAUNCHES, REPLAYS, WARM = 128, 200, 40, 3


def measure(kernel: CudaKernel, config: LaunchConfig) -> dict[str, object]:
    counter = torch.zeros(BLOCKS, dtype=torch.int32, device="cuda")
    arrivals = torch.zeros(1, dtype=torch.int32, device="cuda")

    def chain() -> None:
        for _ in range(LAUNCHES):
            kernel.launch(config, counter, arrivals)

    try:
        graph = lab.capture(chain)
        times = lab.replay_times(graph, REPLAYS, WARM)
    except (CudaError, RuntimeError) as error:
        torch.cuda.synchronize()
        return {"refused": str(error).splitlines()[0]}
    wanted = LAUNCHES * (1 + REPLAYS + WARM)
    right = bool((counter == wanted).all())
    return {"us_a_launch": round(lab.summary(times)["median_us"] / LAUNCHES, 3), "counts_right": right}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    rows = lab.Rows(parser.parse_args().out)
    source = str(Path(__file__).parent / "csrc" / "attributes.cuh")
    plain, barrier = (
        CudaKernel(KernelSpec.of(source, "tick", {"GRID_SYNC": sync}), torch.device("cuda"))
        for sync in (0, 1)
    )
    for cooperative, pdl, cluster in product((False, True), (False, True), (1, 2, 8)):
        config = LaunchConfig((BLOCKS, 1, 1), 128, pdl=pdl, cluster=cluster, cooperative=cooperative)
        for name, kernel in (("plain", plain), ("grid barrier", barrier))[: 1 + cooperative]:
            result = measure(kernel, config)
            rows.add(
                part="attributes", kernel=name, pdl=pdl, cluster=cluster, cooperative=cooperative, **result
            )
            print(
                f"cooperative {cooperative!s:5} pdl {pdl!s:5} cluster {cluster} {name:12} {result}",
                flush=True,
            )


if __name__ == "__main__":
    main()
