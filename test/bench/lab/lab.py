# SPDX-License-Identifier: Apache-2.0
"""What every lab script needs: this checkout's modules, graph timing, bandwidth, result rows."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[3]


def use_checkout() -> None:
    """Makes ``sglang.srt.mega`` importable from this checkout, with no installed SGLang."""
    for name in ("sglang", "sglang.srt"):
        if name not in sys.modules:
            module = types.ModuleType(name)
            module.__path__ = [str(ROOT.joinpath("python", *name.split(".")))]
            sys.modules[name] = module
    sys.path.insert(0, str(ROOT / "test" / "kernels"))


def compile_ahead(specs: Iterable[object]) -> float:
    """Fills the cubin cache with these kernels, several processes at a time; returns the seconds it took."""
    major, minor = torch.cuda.get_device_capability()
    started = time.perf_counter()
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        list(pool.map(_compile_one, [(spec, f"sm_{major}{minor}a") for spec in dict.fromkeys(specs)]))
    return time.perf_counter() - started


def _compile_one(work: tuple[object, str]) -> None:
    use_checkout()
    from sglang.srt.mega.device.cubin_cache import CubinCache
    from sglang.srt.mega.device.cuda_compile import load_cubin

    load_cubin(work[0], work[1], CubinCache())


def capture(step: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """The step as a CUDA graph, after one run outside it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


def replay_times(graph: torch.cuda.CUDAGraph, count: int = 25, warm: int = 3) -> list[float]:
    """Microseconds of single replays, timed with events."""
    for _ in range(warm):
        graph.replay()
    times = []
    for _ in range(count):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return times


def summary(times: list[float]) -> dict[str, float]:
    """Median and the order-statistic interval that covers it with about 95 %."""
    ordered, n = sorted(times), len(times)
    margin = round(0.98 * n**0.5)
    low, high = max(0, n // 2 - margin), min(n - 1, n // 2 + margin)
    return {"median_us": statistics.median(ordered), "ci_low_us": ordered[low], "ci_high_us": ordered[high]}


def copy_tb_s(gigabytes: float = 4.0, times: int = 10) -> float:
    """Device-to-device copy through torch, bytes read plus bytes written a second, in TB/s."""
    source = torch.empty(int(gigabytes * 1e9) // 4, dtype=torch.int32, device="cuda").random_()
    target = torch.empty_like(source)
    times_us = []
    for _ in range(
        times + 3
    ):  # not in a graph: a captured copy becomes a memcpy node, which is a third slower
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        times_us.append(start.elapsed_time(end) * 1e3)
    return 2 * source.numel() * 4 / statistics.median(times_us[3:]) / 1e6


class Rows:
    """Result rows: printed and appended to a JSON-lines file."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.base = {"date": time.strftime("%Y-%m-%d"), "card": torch.cuda.get_device_name(), "tree": tree()}
        self.base["versions"] = {"torch": torch.__version__, "cuda": torch.version.cuda}

    def add(self, **values: object) -> None:
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({**self.base, **values}) + "\n")


def tree() -> str:
    """The commit of this checkout, or ``unknown`` where git cannot say."""
    result = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    )
    return result.stdout.strip() or "unknown"
