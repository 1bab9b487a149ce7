# SPDX-License-Identifier: Apache-2.0
"""What a rank slice is, and the arithmetic that every family's slice shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sglang_fork.errors import ForkError

# ModelOpt-style NVFP4 checkpoints keep attention, shared experts and heads in higher precision.
NVFP4_IGNORE = (
    "lm_head",
    "*linear_attn*",
    "*self_attn*",
    "*shared_expert*",
    "*mlp.gate",
    "*shared_expert_gate*",
)
# FP8 checkpoints quantise in blocks of this many rows and columns, a float scale each.
FP8_BLOCK = 128
FP8_BYTES = 1 + 4 / FP8_BLOCK**2
# nvfp4-fp8: NVFP4 experts, and FP8 with static scales for what else is quantised.
WEIGHTS = ("bf16", "fp8", "nvfp4", "nvfp4-fp8", "mxfp4")


@dataclass(frozen=True)
class Slice:
    """One rank's model: ``config`` is a Hugging Face config; ``expert_bytes`` one expert's weights in a
    layer, ``dense_bytes`` every other weight that a step reads in all layers, ``head_bytes`` the head's;
    ``parts`` shares ``dense_bytes`` among the megakernel's slots."""

    family: str
    name: str
    layers: int
    weights: str
    config: dict[str, Any]
    experts: int
    top_k: int
    moe_layers: int
    expert_bytes: int
    dense_bytes: int
    head_bytes: int
    parts: dict[str, int] = field(default_factory=dict)

    def step_bytes(self, distinct_experts: int) -> tuple[int, int]:
        """Bytes of weights that a step reads once: (layers and head, layers), ``distinct_experts`` summed
        over the MoE layers."""
        layers = self.dense_bytes + self.expert_bytes * distinct_experts
        return layers + self.head_bytes, layers


def bytes_per_weight(weights: str) -> float:
    """Bytes an expert's weight, block scales included. Raises ``ForkError`` for an unknown format.

    SGLang holds more for an NVFP4 expert: global and input scales of 24 bytes, and on Hopper a second copy of
    the block scales (``*_blockscale_swizzled``), which Marlin does not read; with it parameters are 10/9 of
    this count. Kimi K3's expert biases, 0.4 %, are SGLang's own and are left out too.
    """
    nvfp4 = 0.5 + 1 / 16
    table = {"bf16": 2.0, "fp8": FP8_BYTES, "nvfp4": nvfp4, "nvfp4-fp8": nvfp4, "mxfp4": 0.5 + 1 / 32}
    if weights not in table:
        raise ForkError(f"weight format {weights!r} is not one of {', '.join(WEIGHTS)}")
    return table[weights]


def share(total: int, tp: int, what: str) -> int:
    if total % tp:
        raise ForkError(f"{what} {total} does not divide over {tp} ranks")
    return total // tp


def whole_groups(layers: int, multiple: int, family: str) -> int:
    if layers < multiple or layers % multiple:
        raise ForkError(f"{family} slices have a multiple of {multiple} layers, not {layers}")
    return layers


def block_fp8(plain: Sequence[str]) -> dict[str, Any]:
    """The quantisation config of an FP8 checkpoint with block scales; the modules ``plain`` stay BF16."""
    return {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [FP8_BLOCK, FP8_BLOCK],
        "modules_to_not_convert": list(plain),
    }


def modelopt_nvfp4(ignore: tuple[str, ...]) -> dict[str, Any]:
    """The quantisation config of a ModelOpt NVFP4 checkpoint: group 16, ``ignore`` left in BF16."""
    return {
        "quant_method": "modelopt",
        "quant_algo": "NVFP4",
        "kv_cache_quant_algo": None,
        "group_size": 16,
        "ignore": list(ignore),
        "producer": {"name": "modelopt", "version": "0.30"},
    }


def modelopt_mixed(algorithms: Mapping[str, str]) -> dict[str, Any]:
    """The quantisation config of a ModelOpt checkpoint that stores modules in different formats: module name
    -> ``FP8`` (static scales) or ``NVFP4``."""
    groups = {"FP8": {}, "NVFP4": {"group_size": 16}}
    return {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "kv_cache_quant_algo": None,
        "quantized_layers": {name: {"quant_algo": a, **groups[a]} for name, a in algorithms.items()},
        "ignore": ["lm_head"],
        "producer": {"name": "modelopt", "version": "0.40"},
    }
