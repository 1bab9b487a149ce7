# SPDX-License-Identifier: Apache-2.0
"""GPU times: L2-cold graph replays and the card's own bandwidth, by CUDA events. Needs torch and a GPU."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

import torch

from sglang_fork.bench.stats import balanced

# Written between timed replays; several times any L2 (the H200 has 60 MB).
FLUSH_BYTES = 256 << 20
COPY_BYTES = 4 << 30


class L2Flush:
    """Evicts the L2 by writing a buffer larger than it."""

    def __init__(self) -> None:
        self._buffer = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")

    def __call__(self) -> None:
        self._buffer.zero_()


def time_once(run: Callable[[], object], flush: L2Flush) -> float:
    """Microseconds of one L2-cold call of ``run`` on the current stream."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    flush()
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3


def alternate(
    arms: Mapping[str, Callable[[], object]], *, rounds: int, replays: int, warmup: int = 3
) -> dict[str, list[float]]:
    """Microseconds of ``rounds x replays`` L2-cold calls of each arm, arms alternating in balanced order."""
    flush = L2Flush()
    for run in arms.values():
        for _ in range(warmup):
            run()
    torch.cuda.synchronize()
    samples: dict[str, list[float]] = {name: [] for name in arms}
    for order in balanced(tuple(arms), rounds):
        for name in order:
            samples[name] += [time_once(arms[name], flush) for _ in range(replays)]
    return samples


def bandwidth() -> tuple[float, float]:
    """(copy, read) in TB/s: a device-to-device copy counting bytes read and written, and a reduction that
    only reads. Takes 4 GiB buffers, or a quarter of the memory that is free.
    """
    size = min(COPY_BYTES, torch.cuda.mem_get_info()[0] // 4) & ~0xFFFFF
    source = torch.empty(size // 2, dtype=torch.bfloat16, device="cuda").normal_()
    target = torch.empty_like(source)
    copy = _median_us(lambda: target.copy_(source))
    words = source.view(torch.int32)
    read = _median_us(lambda: torch.max(words))
    return 2 * size / copy / 1e6, size / read / 1e6


def _median_us(run: Callable[[], object], repeats: int = 15) -> float:
    run()
    torch.cuda.synchronize()
    times: list[float] = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return statistics.median(times)


def kernel_times(run: Callable[[], object], repeats: int = 5) -> dict[str, tuple[float, float]]:
    """Per kernel name: (launches, microseconds) of one call of ``run``, from the profiler over ``repeats``
    calls.
    """
    activities: Sequence[torch.profiler.ProfilerActivity] = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(repeats):
            run()
        torch.cuda.synchronize()
    totals: dict[str, tuple[float, float]] = {}
    for event in profile.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            launches, micros = totals.get(event.name, (0.0, 0.0))
            totals[event.name] = (launches + 1 / repeats, micros + event.device_time / repeats)
    return totals
