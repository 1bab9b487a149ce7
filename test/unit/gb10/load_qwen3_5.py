# SPDX-License-Identifier: Apache-2.0
"""A small Qwen3.5 in NVFP4 and its MTP draft, loaded as on a GB10 and post-quantized as the presets ask.

Each layer's product is held against the BF16 form of the checkpoint that holds the dequantised weights.
``loads.py`` runs ``loaded`` in a process of its own.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import load_nvfp4 as common
import marlin_twin
import pytest
import qwen3_5_checkpoint
import torch

GROUPS = {"SGLANG_NVFP4_POST_QUANT": "gdn", "SGLANG_FP8_POST_QUANT": "attention,shared_expert,lm_head"}
SMALL = {
    "HIDDEN": 256, "HEADS": 2, "KV_HEADS": 1, "GDN_KEY_HEADS": 2, "GDN_VALUE_HEADS": 4,
    "EXPERTS": common.EXPERTS, "TOP_K": common.TOP_K, "EXPERT_WIDTH": 128, "SHARED_WIDTH": 128,
}  # fmt: skip


def layer_errors(model: Any, wanted: qwen3_5_checkpoint.Tensors) -> dict[str, float]:
    """Relative errors of one GatedDeltaNet layer, one attention layer, their experts, and the head."""
    from sglang.srt.layers.quantization import fp8_post_quant

    gdn, attention = model.model.layers[0], model.model.layers[3]
    at = {0: "model.layers.0", 3: "model.layers.3"}

    def parts(layer: int, *names: str) -> list[torch.Tensor]:
        return [wanted[f"{at[layer]}.{name}.weight"].float() for name in names]

    linear, own = "linear_attn", "self_attn"
    errors = {
        "gdn in": common.dense_error(
            gdn.linear_attn.in_proj_qkvz, parts(0, f"{linear}.in_proj_qkv", f"{linear}.in_proj_z")
        ),
        "gdn out": common.dense_error(gdn.linear_attn.out_proj, parts(0, f"{linear}.out_proj")),
        "fp8 qkv": common.dense_error(
            attention.qkv_proj, parts(3, f"{own}.q_proj", f"{own}.k_proj", f"{own}.v_proj")
        ),
        "fp8 o_proj": common.dense_error(attention.o_proj, parts(3, f"{own}.o_proj")),
        "fp8 shared up": common.dense_error(
            gdn.mlp.shared_expert.gate_up_proj,
            parts(0, "mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"),
        ),
    }
    for index, layer in ((0, gdn), (3, attention)):
        up, down = (
            list(wanted[f"{at[index]}.mlp.experts.{name}"].float()) for name in ("gate_up_proj", "down_proj")
        )
        errors[f"experts {index}"] = common.moe_error(layer.mlp.experts, up, down)
    x = torch.randn(5, model.lm_head.weight.shape[1], generator=common.generator).bfloat16()
    logits = fp8_post_quant.lm_head_logits(model.lm_head, x)
    errors["fp8 lm_head"] = common.relative(logits, x.float() @ wanted["lm_head.weight"].float().T)
    return errors


def loaded(folder: Path) -> dict[str, Any]:
    """Formats, errors by layer, and what became of the draft's own head."""
    os.environ |= GROUPS
    with torch.no_grad(), marlin_twin.installed(pytest.MonkeyPatch()):
        forms = qwen3_5_checkpoint.make(folder, SMALL, vocabulary=512)
        target = common.build(folder / "nvfp4")
        common.load(target, forms["nvfp4"])
        draft = common.build(folder / "nvfp4", draft=True)
        draft.lm_head.weight.data.fill_(float("nan"))  # as memory that no checkpoint fills
        own = draft.lm_head.weight
        common.load(draft, forms["nvfp4"])
        untouched = draft.lm_head.weight is own
        draft.set_embed_and_head(*target.get_embed_and_head())
        draft.set_lm_head_from_target(target.lm_head)
        from sglang.srt.layers.logits_processor import LogitsProcessor
        from sglang.srt.layers.quantization import fp8_post_quant, nvfp4_self_test

        x = torch.randn(3, draft.lm_head.weight.shape[1], generator=common.generator).bfloat16()
        logits = [
            LogitsProcessor._compute_lm_head(model.logits_processor, x, model.lm_head)
            for model in (target, draft)
        ]
        return {
            "target": type(target).__name__,
            "draft": type(draft).__name__,
            "errors": layer_errors(target, forms["all"]),
            "self_tested": len(nvfp4_self_test._passed),
            "head_untouched": untouched,
            "draft_fp8": fp8_post_quant.holds_fp8(draft.model.layers[0].qkv_proj),
            "same_logits": bool(torch.equal(*logits)) and bool(logits[0].isfinite().all()),
        }
