# SPDX-License-Identifier: Apache-2.0
"""Shape and rows of V4.1's hyper-connections to compiled kernels and launch sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sglang.srt.mega.device.spec import KernelSpec, LaunchConfig

STREAMS, MIXES = 4, 24
SUMS = 28  # of one slice and row: the mixes, two sums of squares, two unused
BUCKETS = (8, 16, 48)  # rows that one launch's blocks hold; wider steps take more blocks
MAX_ROWS = 384
ENTRIES = ("mhc_post", "mhc_finish")


@dataclass(frozen=True)
class Shape:
    """``hidden`` channels of a stream; ``slice`` columns a block of mhc_post owns; Sinkhorn's ``iterations``
    and the three epsilons: of the mix's norm, of the mix, of the sublayer's norm.
    """

    hidden: int
    slice: int
    iterations: int
    rms_epsilon: float
    epsilon: float
    norm_epsilon: float

    def __post_init__(self) -> None:
        if self.hidden % 8 or self.hidden % self.slice or self.slice % 8 or self.slice > 128:
            raise ValueError(f"no hyper-connection kernels for hidden {self.hidden}, slices of {self.slice}")

    @property
    def slices(self) -> int:
        return self.hidden // self.slice


def slice_of(hidden: int) -> int:
    """Columns a block: 80 blocks at 5120 channels, the best of 32, 40 and 64 on an H200."""
    for width in (64, 40, 32, 16, 8):
        if hidden % width == 0:
            return width
    raise ValueError(f"hidden {hidden} is no multiple of 8")


V41_FLASH = Shape(
    hidden=5120,
    slice=slice_of(5120),
    iterations=20,
    rms_epsilon=1e-20,
    epsilon=1e-6,
    norm_epsilon=1e-20,
)


def bucket_of(rows: int) -> int:
    """The rows that a block of mhc_post holds."""
    return next((bucket for bucket in BUCKETS if rows <= bucket), BUCKETS[-1])


def kernel_spec(entry: str, shape: Shape, bucket: int) -> KernelSpec:
    """The compiled form; mhc_finish has one for all rows."""
    constants: dict[str, int | float] = {"HIDDEN": shape.hidden, "SLICE": shape.slice}
    if entry == "mhc_post":
        constants["ROWS"] = bucket
    else:
        constants |= {
            "ITERATIONS": shape.iterations,
            "RMS_EPSILON": shape.rms_epsilon,
            "EPSILON": shape.epsilon,
            "NORM_EPSILON": shape.norm_epsilon,
        }
    return KernelSpec.of(f"deepseek_v4/{entry}.cuh", entry, constants)


def launch_config(entry: str, shape: Shape, rows: int) -> LaunchConfig:
    """Grid, block and shared memory for ``rows`` rows."""
    if entry == "mhc_finish":
        return LaunchConfig((rows, 1, 1), 256)
    bucket = bucket_of(rows)
    columns = STREAMS * shape.slice
    stride = columns + (144 - columns % 64) % 64
    shared = bucket * (2 * stride + shape.slice // 8 * MIXES * 4)
    return LaunchConfig((shape.slices, -(-rows // bucket), 1), 4 * shape.slice, shared)


def preset_specs() -> Iterator[KernelSpec]:
    """Every kernel that a preset of this family loads."""
    for bucket in BUCKETS:
        yield kernel_spec("mhc_post", V41_FLASH, bucket)
    yield kernel_spec("mhc_finish", V41_FLASH, BUCKETS[0])
