# SPDX-License-Identifier: Apache-2.0
"""Which NVFP4 GEMM serves a compute capability: one table, one reason a row.

``get_platform().is_sm120`` is true for every compute capability of major 12, the function ``is_sm120()`` for
12.0 alone; neither says what a GB10 (12.1) can run. This table names each capability.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

logger = logging.getLogger(__name__)

Layer = Literal["dense", "moe"]
Capability = tuple[int, int]

GB10: Capability = (12, 1)
NVFP4_QUANTIZATIONS = frozenset({"modelopt_fp4", "modelopt_mixed"})


@dataclass(frozen=True)
class Nvfp4Choice:
    """What serves a layer, and why.

    ``backend`` is a value of --fp4-gemm-backend or --moe-runner-backend, or "auto" for the model's own rule.
    """

    backend: str
    reason: str


_NO_FP4_TENSOR_CORES = "no FP4 tensor cores before compute capability 10.0: weight-only (W4A16)"
_GB10_CUTLASS = "CUTLASS FP4 GEMMs return zeros or NaN on compute capability 12.1: weight-only (W4A16)"


def choose(layer: Layer, capability: Capability) -> Nvfp4Choice:
    """The backend that is right for a layer kind where the user named none.

    Raises:
        ValueError: the capability is below 8.0, which no NVFP4 kernel serves.
    """
    major, _ = capability
    if capability == GB10:
        return Nvfp4Choice("marlin", _GB10_CUTLASS)
    if 8 <= major < 10:
        return Nvfp4Choice("marlin", _NO_FP4_TENSOR_CORES)
    if major == 10:
        if layer == "dense":
            return Nvfp4Choice("flashinfer_cutedsl", "native FP4: CuTe DSL kernels of 10.x")
        return Nvfp4Choice("auto", "native FP4: the model's own rule among the trtllm-gen kernels of 10.x")
    if major >= 11:
        return Nvfp4Choice("flashinfer_cutlass", "native FP4; trtllm-gen and CuTe DSL kernels are 10.x only")
    raise ValueError(
        f"NVFP4 needs compute capability 8.0 or newer, this device has {capability[0]}.{capability[1]}: "
        "serve a BF16 or an INT4 checkpoint of the model instead"
    )


def is_weight_only(layer: Layer, capability: Capability) -> bool:
    """Whether the table's backend ignores the checkpoint's activation scales."""
    return capability >= (8, 0) and choose(layer, capability).backend == "marlin"


def resolve(layer: Layer, requested: str, capability: Capability) -> str:
    """``requested`` unless it is "auto", then the table's choice."""
    return choose(layer, capability).backend if requested == "auto" else requested


@lru_cache(maxsize=64)
def report(layer: Layer, backend: str, capability: Capability) -> None:
    """Log once what serves a layer kind and why; a warning where the table would have chosen another."""
    choice = choose(layer, capability)
    where = f"NVFP4 {layer} layers on compute capability {capability[0]}.{capability[1]}"
    if choice.backend in ("auto", backend):
        logger.info("%s: %s (%s)", where, backend, choice.reason)
    elif capability == GB10:
        logger.warning("%s: %s was asked for, but %s", where, backend, choice.reason)
    else:
        logger.info("%s: %s was asked for (the default is %s)", where, backend, choice.backend)


def moe_runner_backend(requested: str, quantization: str | None, capability: Capability) -> str:
    """--moe-runner-backend of an NVFP4 checkpoint on a GB10; ``requested`` for every other device."""
    if capability != GB10 or quantization not in NVFP4_QUANTIZATIONS:
        return requested
    return resolve("moe", requested, capability)


def runs_moe_weight_only(requested: str, capability: Capability) -> bool:
    """Whether an NVFP4 W4A4 MoE is served as W4A16 by Marlin: asked for, or the table's choice."""
    return resolve("moe", requested, capability) == "marlin"
