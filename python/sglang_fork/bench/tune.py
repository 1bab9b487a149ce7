# SPDX-License-Identifier: Apache-2.0
"""Tiles of SGLang's Triton fused-MoE kernel for shapes that it ships no file for, tuned at decode's rows.

Upstream's own tuner is not in its wheel and searches every batch size; a decode step needs a few rows. Every
candidate runs the real expert layer on random rows, weights cold; the fastest of each row count is kept.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from sglang_fork.bench.timing import L2Flush, time_once

SGLANG_READS = {
    "sig srt/layers/moe/moe_runner/triton_utils/fused_moe_triton_config.py::get_moe_configs",
    "body srt/layers/moe/moe_runner/triton_utils/__init__.py::override_config",
}
# (columns, depth, stages, warps) of a tile; 16 rows each, which every expert's few rows fit.
TILES = (
    (32, 64, 4, 4),
    (32, 128, 3, 4),
    (32, 128, 5, 4),
    (32, 256, 3, 4),
    (64, 64, 4, 4),
    (64, 64, 5, 4),
    (64, 128, 3, 4),
    (64, 128, 4, 4),
    (64, 256, 3, 4),
    (128, 64, 3, 4),
    (128, 64, 4, 4),
    (128, 128, 3, 4),
    (128, 128, 4, 8),
)
REPEATS = 7


def candidates() -> Iterator[dict[str, int]]:
    for columns, depth, stages, warps in TILES:
        yield {
            "BLOCK_SIZE_M": 16,
            "BLOCK_SIZE_N": columns,
            "BLOCK_SIZE_K": depth,
            "GROUP_SIZE_M": 1,
            "num_warps": warps,
            "num_stages": stages,
        }


def missing_file(experts: torch.nn.Module) -> str | None:
    """The name of the file that SGLang would look for; ``None`` where it finds one, of any Triton, or the
    layer does not run the Triton kernel."""
    from sglang.srt.layers.moe.moe_runner.triton_utils import fused_moe_triton_config as tiles

    weight = getattr(experts, "w2_weight", None)
    if weight is None or weight.dtype != torch.bfloat16:
        return None
    count, _, width = weight.shape
    if tiles.get_moe_configs(count, width, None) is not None:
        return None
    return str(tiles.get_config_file_name(count, width, None))


def tune(layers: Sequence[Any], rows: Sequence[int], *, routed: int, top_k: int) -> dict[str, Any]:
    """The fastest tile for each row count, over ``layers`` (expert layers of one shape, one after another, so
    that no weights are warm). ``routed`` experts of ``top_k`` each; further ones are fused shared experts."""
    flush = L2Flush()
    inputs = {count: _inputs(layers[0], count, routed, top_k) for count in rows}
    best: dict[int, tuple[float, dict[str, int]]] = {}
    for tile in candidates():
        try:
            for count, (x, chosen) in inputs.items():
                micros = _micros(layers, tile, x, chosen, flush)
                if count not in best or micros < best[count][0]:
                    best[count] = (micros, tile)
        except Exception as error:
            print(f"tile {tile['BLOCK_SIZE_N']}x{tile['BLOCK_SIZE_K']} does not run: {error}", flush=True)
    return {str(count): tile for count, (_, tile) in sorted(best.items())}


def _inputs(layer: Any, count: int, routed: int, top_k: int) -> tuple[torch.Tensor, Any]:
    """Random rows, and their choices as the router would hand them over."""
    from sglang.srt.layers.moe.topk import StandardTopKOutput

    total, hidden, _ = layer.w2_weight.shape
    x = torch.randn(count, hidden, device="cuda", dtype=torch.bfloat16)
    logits = torch.rand(count, routed, device="cuda")
    shared = torch.arange(routed, total, device="cuda").expand(count, -1)
    ids = torch.cat([torch.topk(logits, top_k).indices, shared], 1).to(torch.int32)
    return x, StandardTopKOutput(torch.full(ids.shape, 1.0 / top_k, device="cuda"), ids, logits)


def _micros(
    layers: Sequence[Any], tile: dict[str, int], x: torch.Tensor, chosen: Any, flush: L2Flush
) -> float:
    """The median time of one layer with this tile; the first two runs compile and do not count."""
    from sglang.srt.layers.moe.moe_runner.triton_utils import override_config

    times = []
    for turn in range(REPEATS + 2):
        # The layer may write its result over its input.
        run = partial(layers[turn % len(layers)], x.clone(), chosen)
        with override_config(tile), torch.no_grad():
            times.append(time_once(run, flush))
    return statistics.median(times[2:])


def install(name: str, chosen: dict[str, Any], folder: Path) -> Path:
    """Write the file where SGLang will find it in this process, beside links to those it ships."""
    from sglang.srt.layers.moe.moe_runner.triton_utils import fused_moe_triton_config as tiles

    shipped = Path(tiles.__file__).parent / "configs"
    version = f"triton_{metadata.version('triton').replace('.', '_')}"
    target = folder / "configs"
    target.mkdir(parents=True, exist_ok=True)
    for other in shipped.iterdir():
        if other.name != version and not (target / other.name).exists():
            (target / other.name).symlink_to(other)
    mine = target / version
    mine.mkdir(exist_ok=True)
    for file in (shipped / version).glob("*.json"):
        if not (mine / file.name).exists():
            (mine / file.name).symlink_to(file)
    (mine / name).unlink(missing_ok=True)
    (mine / name).write_text(json.dumps(chosen, indent=4) + "\n", encoding="utf-8")
    os.environ["SGLANG_MOE_CONFIG_DIR"] = str(folder)
    tiles.get_moe_configs.cache_clear()
    return mine / name
