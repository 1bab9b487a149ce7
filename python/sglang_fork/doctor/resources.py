# SPDX-License-Identifier: Apache-2.0
"""Memory, disk, ports and caches."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from sglang_fork import env
from sglang_fork.doctor.finding import Finding, error, info, ok, warn
from sglang_fork.doctor.machine import Machine
from sglang_fork.launch import hardware
from sglang_fork.paths import state_dir

GIB = 1 << 30
PORT = 30000
LEAST_DISK = 5 * GIB
LEAST_UNIFIED = 16 * GIB


def memory(machine: Machine) -> Iterator[Finding]:
    """GPU memory, or on a unified-memory machine what /proc/meminfo says is left."""
    host = hardware.host_memory(machine.root / "proc/meminfo")
    text = f"{host.available / GIB:.1f} of {host.total / GIB:.1f} GiB available"
    if machine.unified_memory:
        yield from _unified(machine, host, text)
        return
    yield ok("memory", f"host: {text}")
    for gpu in machine.gpus:
        free = gpu.memory - gpu.used
        line = f"GPU {gpu.index}: {free / GIB:.1f} of {gpu.memory / GIB:.1f} GiB free"
        if gpu.used > 0.1 * gpu.memory:
            yield warn(
                "memory",
                line,
                "a server that plans with the whole card runs out of memory while it loads",
                "end what uses it (nvidia-smi), or lower --mem-fraction-static",
            )
        else:
            yield ok("memory", line)


def _unified(machine: Machine, host: hardware.Memory, text: str) -> Iterator[Finding]:
    line = f"unified with the GPU's (/proc/meminfo): {text}"
    if host.available < LEAST_UNIFIED:
        yield error(
            "memory",
            line,
            "loading a model drives the whole machine out of memory, and it freezes rather than fails",
            "end other programs, drop the page cache; ./sglang.sh show PRESET says what a preset needs",
        )
    else:
        yield ok("memory", line)
    swap = _swap(machine.root / "proc/meminfo")
    if swap:
        yield warn(
            "memory",
            f"{swap / GIB:.1f} GiB of swap on a unified-memory machine",
            "weights that are swapped out make every step minutes long instead of failing early",
            "swapoff -a while a large model is served",
        )


def _swap(meminfo: Path) -> float:
    for line in meminfo.read_text().splitlines():
        if line.startswith("SwapTotal:"):
            return float(line.split()[1]) * 1024
    return 0.0


def disk(machine: Machine) -> Iterator[Finding]:
    """Space for environments, caches and logs."""
    folder = state_dir()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    line = f"{free / GIB:.1f} GiB free at {state_dir()}"
    if free < LEAST_DISK:
        yield error(
            "disk",
            line,
            "builds, JIT caches and logs fail half-way",
            "./sglang.sh clean, or set SGLANG_FORK_HOME",
        )
    else:
        yield ok("disk", line)
    shm = machine.root / "dev/shm"
    if len(machine.gpus) > 1 and shm.is_dir() and shutil.disk_usage(shm).total < GIB:
        yield warn(
            "disk",
            f"/dev/shm holds {shutil.disk_usage(shm).total / GIB:.2f} GiB",
            "collectives between GPUs of one host fail in a container",
            "give the container --ipc=host or --shm-size 8g",
        )


def ports(machine: Machine) -> Iterator[Finding]:
    """The port that presets serve on."""
    port = int(machine.environ.get("PORT") or PORT)
    if machine.port_free(port):
        yield ok("port", f"{port} is free")
    else:
        yield warn(
            "port", f"{port} is in use", "a preset refuses to start on it", "PORT=... or ./sglang.sh stop"
        )


def caches(machine: Machine) -> Iterator[Finding]:
    """Where compiled kernels are kept."""
    folder = env.cache_dir()
    parent = folder if folder.exists() else state_dir()
    if parent.exists() and not os.access(parent, os.W_OK):
        yield error(
            "caches",
            f"{parent} cannot be written",
            "every start compiles every kernel again, or fails",
            "chown it",
        )
        return
    size = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()) if folder.exists() else 0
    what = f"{size / GIB:.2f} GiB in {folder}" if size else f"{folder} is cold: first starts compile kernels"
    yield info("caches", what)
    moved = [name for name in ("SGLANG_CACHE_DIR", "TRITON_CACHE_DIR") if machine.environ.get(name)]
    for name in moved:
        yield info("caches", f"{name}={machine.environ[name]} (set by you)")
