# SPDX-License-Identifier: Apache-2.0
"""Shape and rows of GLM's sparse attention to compiled kernels and launch sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sglang.srt.mega.device.spec import KernelSpec, LaunchConfig

LATENT, ROPE = 512, 64  # channels of a cached token that are key and value, and key alone
GROUP = 16  # tokens that a warp stages and scores together
MAX_ROWS = 16  # four requests of four draft tokens, or two of six
MULTIPROCESSORS = 132
MOST_SPLITS = 128
ROW_BYTES = {True: LATENT + 4 * 4 + 2 * ROPE, False: 2 * (LATENT + ROPE)}
SHARED_STRIDE = {True: ROW_BYTES[True] + 16, False: ROW_BYTES[False] + 32}
WARPS, STAGES = {True: 8, False: 4}, {True: 2, False: 2}
ENTRIES = ("mla_decode", "mla_merge")


@dataclass(frozen=True)
class Shape:
    """``heads``: query heads of this rank. ``top_k``: cached tokens that a row chooses. ``fp8``: the cache
    holds 656-byte rows (``flashmla_kv``), else 576 bf16.
    """

    heads: int
    top_k: int
    fp8: bool

    def __post_init__(self) -> None:
        if not 1 <= self.heads <= 16:
            raise ValueError(f"{self.heads} query heads a rank; the sparse MLA kernel serves 1 to 16")
        if self.top_k < 4 or self.top_k % 4:
            raise ValueError(f"top-{self.top_k} is no multiple of 4")

    @property
    def row_bytes(self) -> int:
        """Bytes of a cached token."""
        return ROW_BYTES[self.fp8]

    @property
    def warps(self) -> int:
        """Warps of a block, each with groups of tokens of its own."""
        return WARPS[self.fp8]


GLM5_TP8 = Shape(heads=8, top_k=2048, fp8=True)


def splits(shape: Shape, rows: int) -> int:
    """Blocks that share a row's choice: one a multiprocessor, a group of tokens a warp at least."""
    tiles = -(-shape.heads // 8)
    return max(
        1, min(MULTIPROCESSORS // (rows * tiles), -(-shape.top_k // (GROUP * shape.warps)), MOST_SPLITS)
    )


def kernel_spec(entry: str, shape: Shape) -> KernelSpec:
    """The compiled form of one step; one serves every number of rows."""
    constants = {"HEADS": shape.heads}
    if entry == "mla_decode":
        constants |= {
            "TOP_K": shape.top_k,
            "FP8": int(shape.fp8),
            "WARPS": shape.warps,
            "STAGES": STAGES[shape.fp8],
        }
    return KernelSpec.of(f"glm_moe_dsa/{entry}.cuh", entry, constants)


def launch_config(entry: str, shape: Shape, rows: int, share: int) -> LaunchConfig:
    """Grid, block and shared memory for ``rows`` rows whose choice ``share`` blocks share."""
    if entry == "mla_decode":
        shared = shape.warps * STAGES[shape.fp8] * GROUP * SHARED_STRIDE[shape.fp8]
        return LaunchConfig((share, rows, -(-shape.heads // 8)), 32 * shape.warps, shared)
    return LaunchConfig((shape.heads, rows, 1), LATENT // 4)


def preset_specs() -> Iterator[KernelSpec]:
    """Every kernel that a preset of this family loads: 8 heads a rank at TP8, 16 at TP4, both caches."""
    for heads in (8, 16):
        for fp8 in (True, False):
            for entry in ENTRIES:
                yield kernel_spec(entry, Shape(heads, GLM5_TP8.top_k, fp8))
