# SPDX-License-Identifier: Apache-2.0
"""Where Qwen3.5's megakernel runs, and what it binds."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch

from sglang.srt.layers.quantization import post_quant
from sglang.srt.mega.build import Bound, family_spec
from sglang.srt.mega.executor import DECODE
from sglang.srt.mega.models.qwen3_5 import buffers
from sglang.srt.mega.models.qwen3_5.binder import Binder
from sglang.srt.mega.models.qwen3_5.slots import MAX_ROWS, SLOTS
from sglang.srt.mega.plan import Cause, Unavailable
from sglang.srt.mega.slots import Slot
from sglang.srt.mega.step import Kernel

logger = logging.getLogger(__name__)


def backbone(model: torch.nn.Module) -> Any:
    """The module whose forward runs the covered step: the language model below head and vision tower."""
    inner = getattr(model, "model", model)
    return getattr(inner, "language_model", inner)


def config_reasons(cfg: Any, hf_config: Any) -> list[str]:
    """What the requirements cannot state: weights in BF16, a state and caches in the form that is read."""
    reasons = []
    if cfg.quantization or getattr(hf_config, "quantization_config", None):
        reasons.append("the weights are quantised; the kernels of this spec read BF16")
    reasons += post_quant_reasons()
    if cfg.enable_linear_replayssm or cfg.enable_linear_replayssm_spec:
        reasons.append("ReplaySSM is on; the GatedDeltaNet kernel updates the state itself")
    if cfg.kv_cache_dtype not in ("auto", "bf16", "bfloat16"):
        reasons.append(f"--kv-cache-dtype {cfg.kv_cache_dtype}: the attention kernel reads a BF16 cache")
    if cfg.enable_unified_memory or cfg.enable_page_major_kv_layout:
        reasons.append("unified memory or the page-major KV layout: the kernels read plain pools")
    return reasons


def post_quant_reasons() -> list[str]:
    """Post-quantization of layers that the covered step reads; its lm_head lies outside."""
    try:
        groups = sorted(set(post_quant.current_plan().targets) - {"lm_head"})
    except ValueError as error:
        return [str(error)]
    if not groups:
        return []
    return [
        f"{', '.join(groups)}: post-quantised at load (SGLANG_NVFP4_POST_QUANT, SGLANG_FP8_POST_QUANT); "
        "the kernels of this spec read BF16"
    ]


def model_reasons(model: torch.nn.Module, hf_config: Any) -> list[str]:
    """What only the loaded model shows."""
    inner = backbone(model)
    layers = getattr(inner, "layers", None)
    if layers is None or not hasattr(inner, "embed_tokens"):
        return [f"{type(model).__name__} has no Qwen3.5 backbone"]
    dense = [layer.layer_id for layer in layers if not hasattr(layer.mlp, "experts")]
    if dense:
        return [f"layers {dense} have no experts"]
    if inner.flashinfer_mnnvl_cutedsl_fusion is not None:
        return ["the CuteDSL all-reduce fusion is on; its boundary is not this step's"]
    return []


def bound(model: torch.nn.Module, hf_config: Any) -> Bound:
    """The stages of the loaded layers."""
    inner = backbone(model)
    binder = Binder(inner, mrope=bool(getattr(model, "is_mrope_enabled", False)))

    def unavailable(slot: Slot) -> Unavailable | None:
        reason = binder.unavailable(slot.name)
        return None if reason is None else Unavailable(Cause.WEIGHTS, reason, "the stock step runs it")

    def bind(slots: frozenset[str]) -> Mapping[tuple[str, int], Kernel]:
        kernels = binder.bind(slots)
        logger.info("NVIDIA megakernel: %s", binder.memory())
        return kernels

    return Bound(buffers.written_by(inner), unavailable, bind, binder.choosers)


SPEC = family_spec(
    name="Qwen3.5 plain decode",
    slots=SLOTS,
    max_rows=MAX_ROWS,
    modes=(DECODE,),
    tp_sizes=frozenset({1}),
    bound=bound,
    config_reasons=config_reasons,
    model_reasons=model_reasons,
)
