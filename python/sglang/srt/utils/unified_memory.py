# SPDX-License-Identifier: Apache-2.0
"""A GPU that shares its memory with the system (GB10): refuse at start-up what would freeze the machine.

On a discrete GPU too large a pool is an allocation error. On unified memory it starves the operating system:
the machine stops answering. So the static fraction is capped, the weights and a reserve must fit into what
the kernel calls available, and a guard ends the load before the last gigabytes are gone. All figures are
bytes.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sglang.srt.environ import envs

logger = logging.getLogger(__name__)

GIB = 2**30
LARGEST_FRACTION = 0.85
DEFAULT_FRACTION = 0.80
RESERVE = 6 * GIB
GUARD_FLOOR = 2 * GIB
GUARD_PERIOD_S = 0.2
OFF = "SGLANG_UNIFIED_MEMORY_PREFLIGHT=0 starts without this check."


@dataclass(frozen=True)
class SystemMemory:
    total: int
    available: int
    swap_free: int


def read_system_memory(path: Path = Path("/proc/meminfo")) -> SystemMemory:
    """MemTotal, MemAvailable and SwapFree.

    Raises:
        ValueError: the file lacks one of them.
    """
    fields = {}
    for line in path.read_text().splitlines():
        name, _, rest = line.partition(":")
        if rest.split():
            fields[name] = int(rest.split()[0]) * 1024
    try:
        return SystemMemory(fields["MemTotal"], fields["MemAvailable"], fields.get("SwapFree", 0))
    except KeyError as missing:
        raise ValueError(f"{path} has no {missing.args[0]}") from None


def checkpoint_bytes(model_path: str) -> int | None:
    """Bytes of a local checkpoint's weight files; None where they are not on this machine yet."""
    folder = Path(model_path)
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        size = json.loads(index.read_text()).get("metadata", {}).get("total_size")
        if isinstance(size, int):
            return size
    files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*.bin"))
    return sum(file.stat().st_size for file in files) or None


def _gib(size: float) -> str:
    return f"{size / GIB:.1f} GiB"


def static_fraction(memory: SystemMemory, requested: float | None, weights: int | None) -> float:
    """--mem-fraction-static that leaves the system alive: the requested one, or a safe default.

    Args:
        requested: what the user gave; None chooses.
        weights: bytes of the checkpoint, None where unknown.

    Raises:
        ValueError: the request is above 0.85; or the weights do not fit; each with the way out.
    """
    if requested is not None and requested > LARGEST_FRACTION:
        raise ValueError(
            f"--mem-fraction-static {requested} on unified memory leaves the system "
            f"{_gib(memory.total * (1 - requested))} of {_gib(memory.total)}: machines have frozen "
            "from 0.87 up. "
            f"Give {LARGEST_FRACTION} or less. {OFF}"
        )
    usable = memory.available - RESERVE
    if weights is not None and weights > usable:
        raise ValueError(
            f"the checkpoint holds {_gib(weights)}, and {_gib(memory.available)} of "
            f"{_gib(memory.total)} are available "
            f"({_gib(RESERVE)} are kept for the system): stop other programs, or serve a smaller "
            f"checkpoint. {OFF}"
        )
    if requested is None:
        fraction = round(min(DEFAULT_FRACTION, usable / memory.total), 3)
        if weights is not None and fraction * memory.total < weights:
            fraction = round(min(LARGEST_FRACTION, usable / memory.total), 3)
        if fraction <= 0:
            raise ValueError(f"only {_gib(memory.available)} are available: stop other programs. {OFF}")
        return fraction
    if weights is not None and requested * memory.total < weights:
        raise ValueError(
            f"--mem-fraction-static {requested} is {_gib(requested * memory.total)}, less than the "
            "checkpoint's "
            f"{_gib(weights)}: raise it to at most {LARGEST_FRACTION}, or serve a smaller checkpoint"
        )
    return requested


def refuse_expandable_segments(environ: dict[str, str] | None = None) -> None:
    """Refuse an allocator setting that fails on GB10's driver with NV_ERR_NO_MEMORY.

    Raises:
        ValueError: expandable_segments is on.
    """
    environ = dict(os.environ) if environ is None else environ
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        if "expandable_segments:true" in environ.get(name, "").replace(" ", "").lower():
            raise ValueError(f"{name}: expandable_segments fails on unified memory; remove it. {OFF}")


def is_unified() -> bool:
    """Whether GPU 0 shares the system's memory (an integrated GPU, or compute capability 12.1)."""
    import torch

    if not torch.cuda.is_available() or torch.version.hip is not None:
        return False
    properties = torch.cuda.get_device_properties(0)
    return bool(getattr(properties, "is_integrated", False)) or (properties.major, properties.minor) == (
        12,
        1,
    )


class MemoryGuard(threading.Thread):
    """Watches MemAvailable and calls ``stop`` once when it falls below ``floor``."""

    def __init__(
        self,
        stop: Callable[[SystemMemory], None],
        floor: int = GUARD_FLOOR,
        read: Callable[[], SystemMemory] = read_system_memory,
        period_s: float = GUARD_PERIOD_S,
    ):
        super().__init__(name="unified-memory-guard", daemon=True)
        self.floor, self._stop_load, self._read, self._period_s = floor, stop, read, period_s
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(self._period_s):
            memory = self._read()
            if memory.available < self.floor:
                self._stop_load(memory)
                return

    def end(self) -> None:
        self._ended.set()
        self.join()


def _end_process(memory: SystemMemory) -> None:
    logger.critical(
        "loading ended: %s of %s are available, less than the %s that keep the machine alive. Stop other "
        "programs, serve a smaller checkpoint, or lower --mem-fraction-static. %s",
        _gib(memory.available),
        _gib(memory.total),
        _gib(GUARD_FLOOR),
        OFF,
    )
    logging.shutdown()
    os._exit(1)


@contextmanager
def guarded_load() -> Iterator[None]:
    """Around the loading of weights: on unified memory, end the process before the machine freezes."""
    if not envs.SGLANG_UNIFIED_MEMORY_PREFLIGHT.get() or not is_unified():
        yield
        return
    guard = MemoryGuard(_end_process)
    guard.start()
    try:
        yield
    finally:
        guard.end()
