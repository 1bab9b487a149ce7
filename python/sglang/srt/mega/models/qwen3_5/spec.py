# SPDX-License-Identifier: Apache-2.0
"""Where Qwen3.5's megakernel runs, and its build."""

from __future__ import annotations

import logging
from typing import Any

import torch

from sglang.kernels.plugin_kernels.nvidia.spec import (
    BuildContext,
    MegakernelSpec,
    Numerics,
    NumericsKind,
    Requirements,
)
from sglang.srt.environ import envs
from sglang.srt.layers.quantization import post_quant
from sglang.srt.mega import host
from sglang.srt.mega.executor import DECODE, Executor
from sglang.srt.mega.models.qwen3_5 import binder, buffers
from sglang.srt.mega.models.qwen3_5.slots import MAX_ROWS, SLOTS
from sglang.srt.mega.plan import Cause, Unavailable, agree, make_plan
from sglang.srt.mega.slots import Slot, SlotListError, select
from sglang.srt.runtime_context import get_parallel

logger = logging.getLogger(__name__)


def backbone(model: torch.nn.Module) -> Any:
    """The module whose forward runs the covered step: the language model below head and vision tower."""
    inner = getattr(model, "model", model)
    return getattr(inner, "language_model", inner)


def config_disable_reasons(cfg: Any, hf_config: Any) -> list[str]:
    """What the requirements cannot state: a readable slot list, a step that one rank holds whole, weights in
    BF16.
    """
    reasons = []
    try:
        select(SLOTS, envs.SGLANG_NVIDIA_MEGAKERNEL_SLOTS.get())
    except SlotListError as error:
        reasons.append(str(error))
    if cfg.quantization or getattr(hf_config, "quantization_config", None):
        reasons.append("the weights are quantised; the kernels of this spec read BF16")
    reasons += post_quant_reasons()
    if cfg.enable_linear_replayssm or cfg.enable_linear_replayssm_spec:
        reasons.append("ReplaySSM is on; the GatedDeltaNet kernel updates the state itself")
    if cfg.kv_cache_dtype not in ("auto", "bf16", "bfloat16"):
        reasons.append(f"--kv-cache-dtype {cfg.kv_cache_dtype}: the attention kernel reads a BF16 cache")
    if cfg.enable_unified_memory or cfg.enable_page_major_kv_layout:
        reasons.append("unified memory or the page-major KV layout: the kernels read plain pools")
    if envs.SGLANG_MEGAKERNEL_PARITY.get() and cfg.cuda_graph_config.decode.backend != "disabled":
        reasons.append(
            "SGLANG_MEGAKERNEL_PARITY compares eager steps; pass --cuda-graph-backend-decode disabled"
        )
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


def model_disable_reasons(model: torch.nn.Module, hf_config: Any) -> list[str]:
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


def build(model: torch.nn.Module, hf_config: Any, context: BuildContext) -> Executor:
    """Plan the slots, bind the kernels, and hand both to the executor."""
    inner = backbone(model)
    bound = binder.Binder(inner, mrope=bool(getattr(model, "is_mrope_enabled", False)))

    def availability(slot: Slot) -> Unavailable | None:
        reason = bound.unavailable(slot.name)
        return None if reason is None else Unavailable(Cause.WEIGHTS, reason, "the stock step runs it")

    plan = make_plan(
        SLOTS, select(SLOTS, envs.SGLANG_NVIDIA_MEGAKERNEL_SLOTS.get()), context.widths, availability
    )
    agree(plan, SPEC.name)
    wanted = {name for rows in plan.widths for name in plan.kernels(rows)}
    kernels = bound.bind(wanted)
    logger.info("NVIDIA megakernel: %s", bound.memory())
    return Executor(
        name=SPEC.name,
        slots=SLOTS,
        plan=plan,
        kernels=kernels,
        modes=frozenset({DECODE}),
        written=buffers.written_by(inner),
        choosers=bound.choosers,
        parity_rank=get_parallel().tp_rank if envs.SGLANG_MEGAKERNEL_PARITY.get() else None,
    )


SPEC = MegakernelSpec(
    name="Qwen3.5 plain decode",
    requires=Requirements(
        isas=frozenset({"sm_90", host.EMULATED}),
        tp_sizes=frozenset({1}),
        dtypes=frozenset({"bfloat16"}),
    ),
    features=frozenset(),
    numerics=Numerics(NumericsKind.TOLERANCE, {name: slot.numerics.rtol for name, slot in SLOTS.items()}),
    max_rows=MAX_ROWS,
    build=build,
    api_version=2,
    model_disable_reasons=model_disable_reasons,
    config_disable_reasons=config_disable_reasons,
)
