# SPDX-License-Identifier: Apache-2.0
"""Weight bytes are what a step must read: counted by hand for each format, held against the parameters that
SGLang makes, and the same as in every committed line."""

import re

import pytest

from sglang_fork import memory, preset
from sglang_fork.bench import record, routing, slices
from sglang_fork.commands.bench import RESULTS
from sglang_fork.paths import ROOT

CONFIGS = {
    "qwen3_5": "qwen3_5_397b",
    "glm_moe_dsa": "glm_5_2",
    "kimi_k3": "kimi_k3",
    "deepseek_v41": "deepseek_v41_flash",
}
PINNED = ROOT / "test" / "unit" / "models" / "pinned"
DTYPES = {"uint8": 1, "float8_e4m3fn": 1, "float32": 4}


def rank(family, weights, tp, layers):
    published = memory.config(CONFIGS[family])
    return slices.build(
        family, published.get("text_config", published), tp=tp, layers=layers, weights=weights
    )


# An expert: the bytes of gate, up and down, then of their block scales.
BY_HAND = [
    ("qwen3_5", "bf16", 8, 3 * 128 * 4096 * 2, 0),
    ("qwen3_5", "fp8", 8, 3 * 128 * 4096, 3 * 1 * 32 * 4),  # a float for 128 x 128
    ("qwen3_5", "nvfp4", 8, 3 * 128 * 2048, 2 * 128 * 256 + 4096 * 8),  # a byte for 16
    ("qwen3_5", "nvfp4-fp8", 8, 3 * 128 * 2048, 2 * 128 * 256 + 4096 * 8),
    ("glm_moe_dsa", "bf16", 8, 3 * 256 * 6144 * 2, 0),
    ("glm_moe_dsa", "fp8", 8, 3 * 256 * 6144, 3 * 2 * 48 * 4),
    ("glm_moe_dsa", "nvfp4", 8, 3 * 256 * 3072, 2 * 256 * 384 + 6144 * 16),
    ("kimi_k3", "bf16", 8, 3 * 384 * 3584 * 2, 0),
    ("kimi_k3", "mxfp4", 8, 3 * 384 * 1792, 2 * 384 * 112 + 3584 * 12),  # a byte for 32
    ("deepseek_v41", "mxfp4", 4, 3 * 576 * 2560, 2 * 576 * 160 + 5120 * 18),
]


@pytest.mark.parametrize(("family", "weights", "tp", "packed", "scales"), BY_HAND)
def test_an_experts_bytes_by_hand(family, weights, tp, packed, scales):
    assert rank(family, weights, tp, 24).expert_bytes == packed + scales


@pytest.mark.parametrize("family", ["qwen3_5", "glm_moe_dsa"])
def test_an_nvfp4_expert_is_its_packed_weights_and_one_copy_of_its_block_scales(family):
    """Of SGLang's parameters the count leaves out the global and the input scales, 24 bytes an expert, and
    the second copy of the block scales where the class makes one: Marlin reads the first."""
    built = rank(family, "nvfp4", 1, 4)
    text, sizes = (PINNED / f"{CONFIGS[family]}.txt").read_text(), {}
    for part, shape, dtype in re.findall(r"mlp\.experts\.(\w+) \[([\d, ]+)\] (\w+)", text):
        experts, *one = (int(n) for n in shape.split(", "))
        assert experts == built.experts
        sizes[part] = DTYPES[dtype]
        for n in one:
            sizes[part] *= n
    read = {f"{matrix}_{part}" for matrix in ("w13", "w2") for part in ("weight", "weight_scale")}
    assert sum(sizes[part] for part in read) == built.expert_bytes
    rest = {part: size for part, size in sizes.items() if part not in read}
    copies = {part for part in rest if part.endswith("_blockscale_swizzled")}
    assert sum(size for part, size in rest.items() if part not in copies) == 24
    assert all(sizes[part] == sizes[part.replace("blockscale_swizzled", "weight_scale")] for part in copies)


def test_every_committed_line_has_this_count():
    files = sorted(RESULTS.glob("step*.jsonl"))
    lines = [line for line in record.load(files) if line.routing in routing.CASES]
    assert {"bf16", "nvfp4", "nvfp4-fp8"} <= {line.weights for line in lines}
    for line in lines:
        published = memory.config(preset.load(line.preset).weights.config)
        production = published.get("text_config", published)
        tp = 1 if line.slice == "whole" else int(line.slice.removeprefix("tp"))
        built = slices.build(line.family, production, tp=tp, layers=line.layers, weights=line.weights)
        drawn = routing.draw(
            line.routing, layers=built.moe_layers, rows=line.rows, experts=built.experts, top_k=built.top_k
        )
        counted = built.step_bytes(sum(drawn.distinct(i) for i in range(built.moe_layers)))
        assert (line.weight_bytes, line.layers_weight_bytes) == counted, line
