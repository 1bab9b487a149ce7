# SPDX-License-Identifier: Apache-2.0
"""Quantize BF16 layers after loading: which layers, to what, and what it cost.

Two opt-in lists, comma separated, each of group names of :data:`GROUPS`:

* ``SGLANG_NVFP4_POST_QUANT``: weight-only NVFP4 through Marlin (a quarter of the weight bytes);
* ``SGLANG_FP8_POST_QUANT``: per-channel E4M3 weights, per-token activations (half of them).

Only layers that the checkpoint left unquantized change. Both lists apply to the target and to a draft model;
a draft that will take over its target's lm_head keeps its own as it is: no checkpoint filled it.
What each group saved, and the error that it brought, is logged at load.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from sglang.srt.environ import envs
from sglang.srt.layers.quantization.fp8_post_quant import UNQUANTIZED_METHODS, Fp8Quantizer

logger = logging.getLogger(__name__)

GROUPS: dict[str, str] = {
    "gdn": r"linear_attn\.(in_proj_qkvz|in_proj_qkv|in_proj_z|out_proj)$",
    "attention": r"(self_attn|layers\.\d+)\.(qkv_proj|o_proj)$",
    "shared_expert": r"shared_experts?\.(gate_up_proj|down_proj)$",
    "mlp": r"\bmlp\.(gate_up_proj|down_proj)$",
    "lm_head": r"(^|\.)lm_head$",
}
NVFP4_GROUPS = frozenset(GROUPS) - {"lm_head"}


class Quantizer(Protocol):
    """Turns one layer's BF16 weight into another format, in place."""

    name: str

    def refusal(self, layer: torch.nn.Module) -> str | None:
        """Why this layer must stay as it is, or None."""

    def quantize(self, layer: torch.nn.Module) -> tuple[int, float]:
        """Replace the weight and its method; returns ``(bytes after, relative weight error)``."""


@dataclass
class Report:
    """What one group of layers became."""

    group: str
    target: str
    layers: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    worst_error: float = 0.0
    skipped: dict[str, int] = field(default_factory=dict)

    def line(self) -> str:
        text = (
            f"post-quantized {self.group} to {self.target}: {self.layers} layers, "
            f"{self.bytes_before / 2**20:.1f} -> {self.bytes_after / 2**20:.1f} MiB, "
            f"largest relative weight error {self.worst_error:.3g}"
        )
        if self.skipped:
            text += "; left as they are: " + ", ".join(f"{n} ({why})" for why, n in self.skipped.items())
        return text


@dataclass(frozen=True)
class Plan:
    """Group name to quantizer name ("nvfp4" or "fp8"); empty where nothing is asked for."""

    targets: dict[str, str]

    def target_of(self, name: str) -> tuple[str, str] | None:
        """``(group, target)`` of a module name, or None."""
        for group, target in self.targets.items():
            if re.search(GROUPS[group], name):
                return group, target
        return None


def _names(text: str) -> list[str]:
    return [part for part in (piece.strip() for piece in text.split(",")) if part]


def read_plan(nvfp4: str, fp8: str) -> Plan:
    """The plan of the two lists.

    Raises:
        ValueError: an unknown group, a group in both lists, or lm_head asked for as NVFP4.
    """
    targets: dict[str, str] = {}
    lists = (("SGLANG_NVFP4_POST_QUANT", "nvfp4", nvfp4), ("SGLANG_FP8_POST_QUANT", "fp8", fp8))
    for variable, target, text in lists:
        allowed = NVFP4_GROUPS if target == "nvfp4" else frozenset(GROUPS)
        for group in _names(text):
            if group not in allowed:
                raise ValueError(f"{variable}: no group {group!r} (it takes: {', '.join(sorted(allowed))})")
            if group in targets and targets[group] != target:
                raise ValueError(
                    f"{group!r} stands in both SGLANG_NVFP4_POST_QUANT and SGLANG_FP8_POST_QUANT"
                )
            targets[group] = target
    return Plan(targets)


def current_plan() -> Plan:
    return read_plan(envs.SGLANG_NVFP4_POST_QUANT.get(), envs.SGLANG_FP8_POST_QUANT.get())


def keeps_separate_gdn_projections() -> bool:
    """Whether GDN's input projections must not be packed into one BF16 weight after loading."""
    return "gdn" in current_plan().targets


def _quantizers() -> dict[str, Quantizer]:
    from sglang.srt.layers.quantization.gdn_post_quant import MarlinNvfp4Quantizer

    return {"fp8": Fp8Quantizer(), "nvfp4": MarlinNvfp4Quantizer()}


def _is_unquantized(layer: torch.nn.Module) -> bool:
    weight = getattr(layer, "weight", None)
    return (
        type(getattr(layer, "quant_method", None)).__name__ in UNQUANTIZED_METHODS
        and isinstance(weight, torch.Tensor)
        and weight.dim() == 2
        and weight.dtype in (torch.bfloat16, torch.float16)
    )


def _shared_weights(model: torch.nn.Module) -> set[int]:
    """Data pointers of weights that more than one module holds (a tied embedding)."""
    seen: set[int] = set()
    shared: set[int] = set()
    for module in model.modules():
        weight = module._parameters.get("weight")
        if weight is not None and weight.numel():
            (shared if weight.data_ptr() in seen else seen).add(weight.data_ptr())
    return shared


def takes_targets_head(model: torch.nn.Module) -> bool:
    """Whether this is a draft whose lm_head the speculative worker replaces by the target's.

    Nemotron-H's draft may bring a head of its own and says so (``_owns_lm_head``).
    """
    if getattr(model, "_owns_lm_head", False):
        return False
    return hasattr(model, "set_lm_head_from_target") or bool(re.search("MTP$|NextN$", type(model).__name__))


def apply(model: torch.nn.Module) -> list[Report]:
    """Post-quantize a loaded model as the environment asks; returns and logs one report a group.

    Raises:
        ValueError: the environment names an unknown group, or a group in both lists.
    """
    plan = current_plan()
    if not plan.targets:
        return []
    quantizers = _quantizers()
    reports = {group: Report(group, target) for group, target in plan.targets.items()}
    shared = _shared_weights(model)
    fp32_head = any(getattr(module, "use_fp32_lm_head", False) for module in model.modules())
    draft = takes_targets_head(model)
    for name, layer in list(model.named_modules()):
        found = plan.target_of(name)
        if found is None or not _is_unquantized(layer):
            continue
        group, target = found
        reason = None
        if group == "lm_head" and draft:
            reason = "the draft takes its target's head"
        elif layer.weight.data_ptr() in shared:
            reason = "the weight is another module's too"
        elif group == "lm_head" and fp32_head:
            reason = "the head computes in FP32"
        _one(layer, quantizers[target], reports[group], reason)
    for report in reports.values():
        expected = report.layers or draft  # a draft has few of the groups
        logger.log(logging.INFO if expected else logging.WARNING, "%s", report.line())
    return list(reports.values())


def _one(layer: Any, quantizer: Quantizer, report: Report, refusal: str | None) -> None:
    refusal = refusal or quantizer.refusal(layer)
    if refusal is not None:
        report.skipped[refusal] = report.skipped.get(refusal, 0) + 1
        return
    before = layer.weight.numel() * layer.weight.element_size()
    after, error = quantizer.quantize(layer)
    report.layers += 1
    report.bytes_before += before
    report.bytes_after += after
    report.worst_error = max(report.worst_error, error)
