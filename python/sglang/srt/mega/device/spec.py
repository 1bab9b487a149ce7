# SPDX-License-Identifier: Apache-2.0
"""What a kernel is before it is compiled, and how it is launched: plain data, the same for both devices.

Nothing here imports torch or CUDA.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ARCHITECTURES = ("sm_90a", "sm_100a", "sm_103a", "sm_121a")
# Bytes of shared memory that one block may have, static and dynamic together.
SHARED_LIMIT = {"sm_90a": 227 << 10, "sm_100a": 227 << 10, "sm_103a": 227 << 10, "sm_121a": 99 << 10}


@dataclass(frozen=True)
class KernelSpec:
    """One compiled form of a kernel: a source, its entry point and the constants that specialise it.

    ``source`` is a path below ``sgl-kernel/csrc/mega``; ``entry`` an ``extern "C"`` name in it;
    ``constants`` become preprocessor definitions ``MEGA_<name>``, so a shape, a width bucket or a switch
    costs nothing at run time.
    """

    source: str
    entry: str
    constants: tuple[tuple[str, int | float], ...] = ()

    def __post_init__(self) -> None:
        names = [name for name, _ in self.constants]
        if len(set(names)) != len(names):
            raise ValueError(f"{self.label}: a constant is given twice: {names}")
        if names != sorted(names):
            raise ValueError(f"{self.label}: constants must be sorted by name (use KernelSpec.of)")

    @classmethod
    def of(cls, source: str, entry: str, constants: Mapping[str, int | float]) -> KernelSpec:
        return cls(source, entry, tuple(sorted(constants.items())))

    @property
    def label(self) -> str:
        values = ", ".join(f"{name}={value}" for name, value in self.constants)
        return f"{self.source}:{self.entry}({values})"

    def definitions(self) -> list[str]:
        """Compiler options ``-DMEGA_NAME=value``; floats in a form that C++ reads back exactly."""
        return [
            f"-DMEGA_{name}={value if isinstance(value, int) else f'{value!r}f'}"
            for name, value in self.constants
        ]


@dataclass(frozen=True)
class LaunchConfig:
    """Grid and block in blocks and threads, dynamic shared memory in bytes, and the launch attributes.

    ``pdl``: the kernel may start before its predecessor has ended and orders itself with ``pdl_wait``.
    ``cluster``: blocks a cluster (1: none). ``cooperative``: all blocks are resident at once, or the launch
    fails.
    """

    grid: tuple[int, int, int]
    block: int
    shared_bytes: int = 0
    pdl: bool = True
    cluster: int = 1
    cooperative: bool = False

    def __post_init__(self) -> None:
        if min(self.grid) < 1 or not 1 <= self.block <= 1024:
            raise ValueError(f"grid {self.grid} or block {self.block} is out of range")
        if self.block % 32:
            raise ValueError(f"block {self.block} is no multiple of a warp")
        if self.cluster < 1 or self.grid[0] % self.cluster:
            raise ValueError(f"grid {self.grid} does not divide into clusters of {self.cluster}")
