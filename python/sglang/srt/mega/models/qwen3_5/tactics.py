# SPDX-License-Identifier: Apache-2.0
"""Shape and rows to compiled kernels and launch sizes.

``depth`` is the number of weight steps (32 columns of 16 rows a warp) in flight; with ``blocks`` a
multiprocessor it sets the registers that the kernel may use. The values are measured on an H200
(test/bench/LAB.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from sglang.srt.mega.device.spec import KernelSpec, LaunchConfig
from sglang.srt.mega.models.qwen3_5.shape import GDN_DIM, HEAD_DIM, QWEN35_35B_A3B, QWEN35_397B_TP8, Shape

BUCKETS = (1, 2, 4, 8)
WARPS = 8
RESIDENT_BLOCKS = 264  # of moe_up: two on each of 132 multiprocessors
ENTRIES = (
    "stream_entry",
    "gdn_front",
    "gdn_step",
    "gdn_out",
    "attn_front",
    "attn_decode",
    "attn_merge",
    "attn_out",
    "moe_route",
    "moe_up",
    "moe_down",
)


def bucket_of(rows: int) -> int:
    """The smallest compiled width that serves this many rows; ValueError beyond the largest."""
    for bucket in BUCKETS:
        if rows <= bucket:
            return bucket
    raise ValueError(f"{rows} rows; the kernels serve 1 to {BUCKETS[-1]}")


def attention_splits(shape: Shape, bucket: int) -> int:
    """Blocks that share one row's context for one key-value head."""
    return max(2, min(64, 128 // (bucket * shape.kv_heads)))


def gdn_values(shape: Shape) -> int:
    """Value channels of a block of the recurrence: enough blocks to reach every multiprocessor."""
    return 16 if shape.value_heads <= 16 else 32


def down_split(shape: Shape) -> int:
    """Warps that share one expert's 16 rows in the down projection."""
    return 1 if shape.inter <= 512 else shape.inter // 512


def kernel_spec(
    entry: str, shape: Shape, bucket: int, changes: Mapping[str, int] | None = None
) -> KernelSpec:
    """The compiled form of one fused step; ``changes`` replace tuned constants, for measurements."""
    return KernelSpec.of(
        f"qwen3_5/{entry}.cuh", entry, {**_constants(entry, shape, bucket), **(changes or {})}
    )


def launch_config(spec: KernelSpec, shape: Shape, rows: int) -> LaunchConfig:
    """Grid, block and shared memory of a compiled form for ``rows`` rows, padding among them."""
    chosen = dict(spec.constants)
    bucket = int(chosen.get("ROWS", 1))
    tiles = shape.hidden // 16
    staged = WARPS * bucket * (shape.hidden // WARPS + 32) * 2
    match spec.entry:
        case "stream_entry":
            return LaunchConfig((rows, 1, 1), 256)
        case "gdn_front":
            channels = (shape.qkv + shape.gdn_inner) // 16 + -(-2 * shape.value_heads // 16)
            return LaunchConfig((channels, 1, 1), 32 * WARPS, staged)
        case "gdn_step":
            return LaunchConfig((shape.gdn_inner // int(chosen["VALUES"]), rows, 1), 128)
        case "gdn_out":
            warps = min(WARPS, shape.value_heads)
            staged = warps * bucket * (shape.gdn_inner // warps + 32) * 2
            return LaunchConfig((tiles, 1, 1), 32 * warps, staged)
        case "attn_front":
            return LaunchConfig((shape.attention_channels // 16, 1, 1), 32 * WARPS, staged)
        case "attn_decode":
            group = shape.heads // shape.kv_heads
            grid = (int(chosen["SPLITS"]), shape.kv_heads, rows)
            return LaunchConfig(grid, 32 * WARPS, WARPS // 2 * group * HEAD_DIM * 4)
        case "attn_merge":
            return LaunchConfig((shape.heads, rows, 1), HEAD_DIM)
        case "attn_out":
            return LaunchConfig((tiles, 1, 1), 32 * WARPS)
        case "moe_route":
            return LaunchConfig(
                (shape.logit_stride // 16 + shape.shared_inter // 8 + 1, 1, 1), 32 * WARPS, staged
            )
        case "moe_up":
            tiles = shape.inter // 8 * shape.top_k * rows
            turns = -(-tiles // RESIDENT_BLOCKS)
            return LaunchConfig((-(-tiles // turns), 1, 1), 32 * WARPS, staged)
        case "moe_down":
            warps = (shape.top_k + 1) * int(chosen["SPLIT"])
            return LaunchConfig((tiles, 1, 1), 32 * max(WARPS, warps))
    raise KeyError(spec.entry)


def preset_specs() -> Iterator[KernelSpec]:
    """Every kernel that a preset of this family loads."""
    for base in (QWEN35_397B_TP8, QWEN35_35B_A3B):
        for shape in (base, replace(base, state_bf16=True)):
            for bucket in BUCKETS:
                for entry in ENTRIES:
                    yield kernel_spec(entry, shape, bucket)


def _constants(entry: str, shape: Shape, bucket: int) -> dict[str, int | float]:
    rows, hidden, epsilon = {"ROWS": bucket}, {"HIDDEN": shape.hidden}, {"EPSILON": shape.epsilon}
    experts = {"EXPERTS": shape.experts, "TOP_K": shape.top_k, "INTER": shape.inter}
    attention = {
        "HEADS": shape.heads,
        "KV_HEADS": shape.kv_heads,
        "SPLITS": attention_splits(shape, bucket),
    }
    front = {**rows, **hidden, **_flight(shape.hidden // WARPS, 8, 2)}
    match entry:
        case "stream_entry":
            return hidden
        case "gdn_front":
            if (
                shape.hidden <= 2048 and bucket == 1
            ):  # many short tiles: a third block helps; wider ones spill
                front |= _flight(shape.hidden // WARPS, 4, 3)
            return {**front, **epsilon, "QKV": shape.qkv, "Z": shape.gdn_inner, "HEADS_V": shape.value_heads}
        case "gdn_step":
            return {
                "QKV": shape.qkv,
                "HEADS_K": shape.key_heads,
                "HEADS_V": shape.value_heads,
                "VALUES": gdn_values(shape),
                "STATE_BF16": int(shape.state_bf16),
            }
        case "gdn_out":
            run = max(shape.gdn_inner // WARPS, GDN_DIM)
            return {**rows, **hidden, **epsilon, **_flight(run, 8, 2), "HEADS_V": shape.value_heads}
        case "attn_front":
            return {**front, **epsilon, "OUT": shape.attention_channels}
        case "attn_decode":
            return {
                **rows,
                **attention,
                **epsilon,
                "ROTARY": shape.rotary,
                "MIN_CHUNK": 64,
                "MROPE": int(shape.mrope),
            }
        case "attn_merge":
            return attention
        case "attn_out":
            return {
                **rows,
                **hidden,
                **_flight(shape.attention_inner // WARPS, 8, 2),
                "INNER": shape.attention_inner,
            }
        case "moe_route":
            flight = _flight(shape.hidden // WARPS, 16, 1 if shape.hidden > 2048 else 2)
            router = {"EXPERTS": shape.experts, "SHARED_INTER": shape.shared_inter}
            return {**rows, **hidden, **epsilon, **flight, **router}
        case "moe_up":
            return {**front, **experts}
        case "moe_down":
            run = shape.inter // down_split(shape)
            flight = _flight(run, 8, 2 if run <= 128 else 1)
            return {
                **rows,
                **hidden,
                **experts,
                **flight,
                "SHARED_INTER": shape.shared_inter,
                "SPLIT": down_split(shape),
            }
    raise KeyError(entry)


def _flight(run: int, depth: int, blocks: int) -> dict[str, int]:
    return {"DEPTH": min(depth, run // 32), "BLOCKS": blocks}
