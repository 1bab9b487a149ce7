# SPDX-License-Identifier: Apache-2.0
"""Server-argument rules of a GB10: unified memory, FP8 KV cache, MLA attention.

Called from the resolution pipeline; each function looks at what the user gave and declares at most one field.
"""

from __future__ import annotations

import logging
from typing import Any

from sglang.srt.arg_groups.nvfp4_capability import GB10, NVFP4_QUANTIZATIONS, Capability
from sglang.srt.arg_groups.overrides import (
    declare_resolution,
    model_config_of,
    resolving_view,
    use_mla_backend,
)
from sglang.srt.environ import envs
from sglang.srt.runtime_context import get_platform
from sglang.srt.utils import unified_memory

logger = logging.getLogger(__name__)


def check_unified_memory(server_args: Any) -> None:
    """Set or check --mem-fraction-static where the GPU shares the system's memory.

    Runs before upstream chooses a fraction from the GPU's size, so that a choice made here stands.

    Raises:
        ValueError: see ``unified_memory.static_fraction`` and ``refuse_expandable_segments``.
    """
    if not envs.SGLANG_UNIFIED_MEMORY_PREFLIGHT.get() or not unified_memory.is_unified():
        return
    cfg = resolving_view(server_args)
    unified_memory.refuse_expandable_segments()
    memory = unified_memory.read_system_memory()
    weights = unified_memory.checkpoint_bytes(cfg.model_path)
    fraction = unified_memory.static_fraction(memory, cfg.mem_fraction_static, weights)
    if fraction == cfg.mem_fraction_static:
        return
    declare_resolution(server_args, "check_unified_memory", mem_fraction_static=fraction)
    logger.info("unified memory: --mem-fraction-static %s of %.1f GiB", fraction, memory.total / 2**30)


def holds_nvfp4(quantization: str | None, quantization_config: Any) -> bool:
    """Whether a checkpoint's weights are NVFP4: ModelOpt by name, compressed-tensors by its 4-bit float
    groups.
    """
    if quantization in NVFP4_QUANTIZATIONS:
        return True
    if quantization != "compressed-tensors" or not isinstance(quantization_config, dict):
        return False
    groups = quantization_config.get("config_groups") or {}
    weights = [group.get("weights") or {} for group in groups.values()]
    return any(
        w.get("num_bits") == 4 and w.get("type") == "float" and w.get("group_size") == 16 for w in weights
    )


def fp8_kv_reason(
    *, requested: str, capability: Capability, everywhere: bool, nvfp4: bool, mla: bool, sinks: bool
) -> tuple[bool, str]:
    """``(use FP8 E4M3 for the KV cache, why or why not)``.

    Args:
        requested: --kv-cache-dtype.
        everywhere: SGLANG_FP8_KV_AUTO, which extends the rule from a GB10 to every Blackwell device.
        nvfp4: the weights are NVFP4.
        mla: latent attention, whose Triton kernels read a BF16 cache here.
        sinks: attention sinks, which the backends that take an FP8 cache here lack.
    """
    if requested != "auto":
        return False, f"--kv-cache-dtype {requested} was asked for"
    if capability != GB10 and not (everywhere and capability >= (10, 0)):
        return False, "not a GB10"
    if not nvfp4:
        return False, "the weights are not NVFP4"
    if mla:
        return False, "latent attention (MLA)"
    if sinks:
        return False, "attention sinks"
    return True, "NVFP4 weights: an FP8 cache halves the bytes that attention reads"


def default_fp8_kv(server_args: Any) -> None:
    """FP8 E4M3 KV cache for NVFP4 checkpoints on a GB10, unless the user or the model's rule chose a
    dtype.
    """
    if not get_platform().is_cuda or get_platform().device_capability < (10, 0):
        return
    cfg = resolving_view(server_args)
    model_config = model_config_of(server_args)
    quantization_config = getattr(model_config.hf_config, "quantization_config", None)
    chosen, reason = fp8_kv_reason(
        requested=cfg.kv_cache_dtype,
        capability=get_platform().device_capability,
        everywhere=envs.SGLANG_FP8_KV_AUTO.get(),
        nvfp4=holds_nvfp4(model_config.quantization or cfg.quantization, quantization_config),
        mla=use_mla_backend(server_args),
        sinks=bool(getattr(model_config, "has_attention_sinks", False)),
    )
    if chosen:
        declare_resolution(server_args, "default_fp8_kv", kv_cache_dtype="fp8_e4m3")
        logger.info("--kv-cache-dtype fp8_e4m3 (%s); --kv-cache-dtype bfloat16 undoes it", reason)


def mla_backend_warning(backend: str | None, capability: Capability) -> str | None:
    """What to say about an MLA model's attention backend, or None; upstream's own choice there is Triton."""
    if capability == GB10 and backend is not None and backend.startswith("flashinfer"):
        return (
            f"--attention-backend {backend}: FlashInfer's MLA kernels are many times slower than "
            "Triton's on compute "
            "capability 12.1; leave the flag out, or give triton"
        )
    return None


def trtllm_gen_refusal(backend: str | None, capability: Capability) -> str | None:
    """Why a prefill backend cannot serve an MLA model on a device, or None.

    Upstream takes ``trtllm_mla`` on every Blackwell device; on 12.x its decode has kernels, its prefill
    (TllmGenFmhaRunner) stops at the first request with "Unsupported architecture".
    """
    if backend == "trtllm_mla" and capability[0] == 12:
        return (
            "the prefill kernels of trtllm_mla are built for compute capability 10.x alone, this device has "
            f"{capability[0]}.{capability[1]}: give --attention-backend triton, or "
            "--prefill-attention-backend triton to keep trtllm_mla for decode"
        )
    return None


def check_mla_backends(server_args: Any) -> None:
    """An MLA model's attention backends: one that cannot run is refused, a slow one warned of.

    Raises:
        ValueError: see ``trtllm_gen_refusal``.
    """
    if not get_platform().is_cuda or not use_mla_backend(server_args):
        return
    cfg = resolving_view(server_args)
    capability = get_platform().device_capability
    refusal = trtllm_gen_refusal(cfg.prefill_attention_backend or cfg.attention_backend, capability)
    if refusal:
        raise ValueError(refusal)
    for backend in {cfg.attention_backend, cfg.prefill_attention_backend, cfg.decode_attention_backend}:
        message = mla_backend_warning(backend, capability)
        if message:
            logger.warning("%s", message)
