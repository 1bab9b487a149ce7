# SPDX-License-Identifier: Apache-2.0
"""What this machine has, and every reason why a preset does not fit it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sglang_fork.memory import GIB, Estimate
from sglang_fork.preset import Preset

# What a unified-memory machine keeps for the system, the page cache of a loading checkpoint included.
SYSTEM_GIB = 8.0


@dataclass(frozen=True)
class Gpu:
    """One visible GPU; ``memory`` is 0 where the driver does not tell (unified memory)."""

    index: int
    name: str
    isa: str
    memory: float
    used: float


@dataclass(frozen=True)
class Memory:
    """Host memory in bytes."""

    total: float
    available: float


def gpus(environ: Mapping[str, str] | None = None) -> list[Gpu]:
    """The GPUs that a server started here would see, by the driver's own tool."""
    query = "index,name,compute_cap,memory.total,memory.used"
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return visible(parse(done.stdout) if done.returncode == 0 else [], environ or os.environ)


def parse(table: str) -> list[Gpu]:
    """GPUs of nvidia-smi's CSV; a line that does not parse is no GPU."""
    found = []
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 5 or not cells[0].isdigit():
            continue
        total, used = (float(c) * 2**20 if c.replace(".", "").isdigit() else 0.0 for c in cells[3:])
        found.append(Gpu(int(cells[0]), cells[1], "sm_" + cells[2].replace(".", ""), total, used))
    return found


def visible(found: Sequence[Gpu], environ: Mapping[str, str]) -> list[Gpu]:
    """Those that CUDA_VISIBLE_DEVICES names by number, in its order; all where it names none that way."""
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return list(found)
    words = [word.strip() for word in chosen.split(",") if word.strip()]
    if any(not word.isdigit() for word in words):
        return list(found)[: len(words)]
    by_index = {gpu.index: gpu for gpu in found}
    return [by_index[int(word)] for word in words if int(word) in by_index]


def host_memory(meminfo: Path = Path("/proc/meminfo")) -> Memory:
    values = {}
    for line in meminfo.read_text().splitlines():
        name, _, rest = line.partition(":")
        values[name] = float(rest.split()[0]) * 1024
    return Memory(values["MemTotal"], values["MemAvailable"])


def reasons(
    preset: Preset,
    *,
    found: Sequence[Gpu],
    memory: Memory,
    estimate: Estimate | None,
    needed: int,
    fraction: float | None,
) -> list[str]:
    """Why the preset cannot run here, all of it. ``needed`` GPUs a node; ``estimate`` is one GPU's share."""
    hardware = preset.hardware
    if not found:
        return [f"no NVIDIA GPU is visible; {preset.name} needs {needed} ({hardware.name})"]
    out = []
    if len(found) < needed:
        out.append(f"{len(found)} GPUs are visible, {needed} are needed on this node")
    wrong = sorted({f"{g.name} is {g.isa}" for g in found[:needed] if g.isa not in hardware.isas})
    if wrong:
        out.append(f"{', '.join(wrong)}; the preset is for {', '.join(hardware.isas)}{_other(preset, found)}")
    if estimate is not None:
        out += _memory_reasons(preset, found[:needed], memory, estimate, fraction)
    return out


def _other(preset: Preset, found: Sequence[Gpu]) -> str:
    fitting = [
        m
        for m in sorted(preset.machines)
        if found[0].isa in preset.machines[m].get("hardware", {}).get("isas", ())
    ]
    return f" (try {' or '.join(f'--on {m}' for m in fitting)})" if fitting else ""


def _memory_reasons(
    preset: Preset, found: Sequence[Gpu], memory: Memory, estimate: Estimate, fraction: float | None
) -> list[str]:
    out = []
    weights = estimate.weights / GIB
    for gpu in found:
        if gpu.memory and estimate.weights > gpu.memory - gpu.used:
            free = (gpu.memory - gpu.used) / GIB
            out.append(f"GPU {gpu.index} has {free:.0f} GiB free; the weights alone take {weights:.0f} GiB")
    if estimate.host > memory.available:
        have, need = memory.available / GIB, estimate.host / GIB
        out.append(f"{have:.0f} GiB of host memory are available; the host tables take {need:.0f} GiB")
    if preset.hardware.unified:
        have = memory.available / GIB
        want = max(weights, (fraction or 0.0) * memory.total / GIB) + SYSTEM_GIB
        if have < want:
            out.append(
                f"{have:.0f} GiB of unified memory are available and {want:.0f} GiB are needed, "
                f"{SYSTEM_GIB:.0f} GiB of them for the system; close programs or lower --mem-fraction-static"
            )
    return out
