# SPDX-License-Identifier: Apache-2.0
"""Shape and rows of GLM's sparse attention and query norm to compiled kernels and launch sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sglang.srt.mega.device.spec import SHARED_LIMIT, KernelSpec, LaunchConfig

LATENT, ROPE = 512, 64  # channels of a cached token that are key and value, and key alone
GROUP = 16  # tokens that a warp stages and scores together
MAX_ROWS = 16  # four requests of four draft tokens, or two of six
MULTIPROCESSORS = 132
MOST_SPLITS = 128
ROW_BYTES = {True: LATENT + 4 * 4 + 2 * ROPE, False: 2 * (LATENT + ROPE)}
SHARED_STRIDE = {True: ROW_BYTES[True] + 16, False: ROW_BYTES[False] + 32}
STAGES = 2  # groups in flight, a warp
# Warps of a block, the first count that fits in shared memory beside STATIC_SHARED bytes: all but sm_121 have
# room for the first.
WARPS = {True: (8, 4), False: (4, 2)}
STATIC_SHARED = 10624
ENTRIES = ("mla_decode", "mla_merge")


@dataclass(frozen=True)
class Shape:
    """``heads``: query heads of this rank. ``top_k``: cached tokens that a row chooses. ``fp8``: the cache
    holds 656-byte rows (``flashmla_kv``), else 576 bf16. ``shared_limit``: bytes of shared memory of a block.
    """

    heads: int
    top_k: int
    fp8: bool
    shared_limit: int = SHARED_LIMIT["sm_90a"]

    def __post_init__(self) -> None:
        if not 1 <= self.heads <= 16:
            raise ValueError(f"{self.heads} query heads a rank; the sparse MLA kernel serves 1 to 16")
        if self.top_k < 4 or self.top_k % 4:
            raise ValueError(f"top-{self.top_k} is no multiple of 4")
        if not self._fitting():
            raise ValueError(f"sparse MLA needs more than {self.shared_limit} bytes of shared memory")

    @property
    def row_bytes(self) -> int:
        """Bytes of a cached token."""
        return ROW_BYTES[self.fp8]

    @property
    def warps(self) -> int:
        """Warps of a block, each with groups of tokens of its own."""
        return self._fitting()[0]

    @property
    def staged_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        return self._staged(self.warps)

    def _fitting(self) -> list[int]:
        return [w for w in WARPS[self.fp8] if self._staged(w) + STATIC_SHARED <= self.shared_limit]

    def _staged(self, warps: int) -> int:
        return warps * STAGES * GROUP * SHARED_STRIDE[self.fp8]


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
            "STAGES": STAGES,
        }
    return KernelSpec.of(f"glm_moe_dsa/{entry}.cuh", entry, constants)


def launch_config(entry: str, shape: Shape, rows: int, share: int) -> LaunchConfig:
    """Grid, block and shared memory for ``rows`` rows whose choice ``share`` blocks share."""
    if entry == "mla_decode":
        return LaunchConfig((share, rows, -(-shape.heads // 8)), 32 * shape.warps, shape.staged_bytes)
    return LaunchConfig((shape.heads, rows, 1), LATENT // 4)


@dataclass(frozen=True)
class NormShape:
    """``hidden`` channels of the compressed query, rows ``stride`` elements apart."""

    hidden: int
    stride: int
    epsilon: float

    def __post_init__(self) -> None:
        if self.hidden % 8 or self.stride % 8 or not 0 < self.hidden <= self.stride:
            raise ValueError(f"no query norm for {self.hidden} channels in rows of {self.stride}")


# The query is the first part of the projection that also gives the latent and the rotated key.
GLM5_NORM = NormShape(hidden=2048, stride=2048 + LATENT + ROPE, epsilon=1e-5)


def norm_spec(shape: NormShape) -> KernelSpec:
    """The CuTe DSL kernel; one form serves every number of rows."""
    constants = {"HIDDEN": shape.hidden, "STRIDE": shape.stride, "EPSILON": shape.epsilon}
    return KernelSpec.of("cute/rms_norm.py", "rms_norm", constants)


def norm_launch(rows: int) -> LaunchConfig:
    return LaunchConfig((rows, 1, 1), 256)


def preset_specs() -> Iterator[KernelSpec]:
    """Every kernel that a preset of this family loads: 8 heads a rank at TP8, 16 at TP4, both caches, in the
    form for each size of shared memory.
    """
    for heads in (8, 16):
        for fp8 in (True, False):
            for limit in sorted(set(SHARED_LIMIT.values())):
                for entry in ENTRIES:
                    yield kernel_spec(entry, Shape(heads, GLM5_TP8.top_k, fp8, limit))
    yield norm_spec(GLM5_NORM)
