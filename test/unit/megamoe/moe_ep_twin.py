# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for the classes of ``flashinfer.moe_ep`` that SGLang's MegaMoE adapter makes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

PAD_ROWS = 8


@dataclass
class Bf16Config:
    intermediate_size: int
    top_k: int
    activation: str = "swiglu"
    gate_up_clamp: float | None = None
    situ_beta: float | None = None
    situ_linear_beta: float | None = None
    enable_in_kernel_fc2_reduce: bool = False
    fc1_alpha: Any = None
    knobs: Any = None


@dataclass
class Fp4Config(Bf16Config):
    apply_topk_in_fc1: bool = False
    combine_dtype: str = "bf16"
    input_norm_const: float | None = None


@dataclass
class WeightPack:
    w13: Any
    w2: Any
    w13_scale: Any
    w2_scale: Any


@dataclass
class Bootstrap:
    world_size: int = 1
    rank: int = 0
    device: int = 0
    process_group: Any = None


@dataclass
class Fleet:
    num_experts: int
    max_tokens_per_rank: int
    token_hidden_size: int


@dataclass
class Backend:
    megakernel: Any
    preprocess_weights: bool = False
    transformed_weights: Any = None


@dataclass
class Tensors:
    hidden_states: Any
    topk_ids: Any
    topk_weights: Any
    scales: Any = None
    fc1_alpha: Any = None
    fc2_alpha: Any = None
    fc1_norm_const: Any = None

    @property
    def num_tokens(self) -> int:
        return self.hidden_states.shape[0]


def padded(scale):
    """A scale plane with ``PAD_ROWS`` more rows, as a swizzled layout needs."""
    return torch.nn.functional.pad(scale.float(), (0, 0, 0, PAD_ROWS)).to(scale.dtype)
