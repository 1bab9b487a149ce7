# SPDX-License-Identifier: Apache-2.0
"""Marlin's NVFP4 layout in torch: what the CUDA kernels store and how they read it back.

Written from the layout that the kernels' sources document (tile order and nibble order of
``gptq_marlin_repack``, fragment order of ``mma.m16n8k16``, ``dequant_fp8_scales``); it runs on any device and
imports nothing of SGLang. ``python -m`` scripts on a GPU hold it against the kernels themselves.
"""

from __future__ import annotations
import __future__

import ast
import contextlib
import inspect
import types

import torch

GROUP = 16
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
# Marlin stores columns i, i+8, ... of each 64 side by side, then swaps the middle of every four.
SCALE_ORDER = [i + 8 * j for i in range(8) for j in range(8)]
FOUR_ORDER = [0, 2, 1, 3]
NIBBLE_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def _tile_index() -> tuple[torch.Tensor, torch.Tensor]:
    """Row (k) and column (n) within a 16 x 64 tile of each nibble, ``[128 words, 8 nibbles]``."""
    k = torch.empty(128, 8, dtype=torch.long)
    n = torch.empty(128, 8, dtype=torch.long)
    for thread in range(32):
        for warp in range(4):
            values = [(thread % 4 * 2 + off, warp * 16 + thread // 4) for off in (0, 1, 8, 9)]
            values += [(row, column + 8) for row, column in values]
            for nibble, source in enumerate(NIBBLE_ORDER):
                k[thread * 4 + warp, nibble], n[thread * 4 + warp, nibble] = values[source]
    return k, n


_K, _N = _tile_index()
_SHIFTS = torch.arange(8, dtype=torch.int64) * 4


def repack(b_q_weight, perm, size_k, size_n, num_bits):
    """Twin of ``gptq_marlin_repack`` for 4 bits: int32 ``[K/8, N]`` to int32 ``[K/16, 2N]``."""
    assert num_bits == 4 and perm.numel() == 0 and tuple(b_q_weight.shape) == (size_k // 8, size_n)
    assert size_k % 16 == 0 and size_n % 64 == 0, (size_k, size_n)
    shifts = _SHIFTS.to(b_q_weight.device)
    codes = (b_q_weight.long()[:, None, :] >> shifts[None, :, None]) & 0xF
    tiles = codes.reshape(size_k // 16, 16, size_n // 64, 64).permute(0, 2, 1, 3)
    words = (tiles[:, :, _K, _N] << shifts).sum(-1)
    words = torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)
    return words.reshape(size_k // 16, size_n * 2)


def unpack(weight: torch.Tensor) -> torch.Tensor:
    """Codes ``[N, K]`` of a repacked weight ``[K/16, 2N]``."""
    k_tiles, n_tiles = weight.shape[0], weight.shape[1] // 128
    shifts = _SHIFTS.to(weight.device)
    nibbles = (weight.long().reshape(k_tiles, n_tiles, 128, 1) >> shifts) & 0xF
    tiles = torch.empty(k_tiles, n_tiles, 16, 64, dtype=torch.long, device=weight.device)
    tiles[:, :, _K, _N] = nibbles
    return tiles.permute(1, 3, 0, 2).reshape(n_tiles * 64, k_tiles * 16)


def _inverse(order: list[int]) -> list[int]:
    return [order.index(i) for i in range(len(order))]


def scales(stored: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The factors that a kernel of activation ``dtype`` reads from stored scale bytes ``[K/16, N]``.

    Returns float32 ``[N, K/16]`` in units of ``2 ** -7``: S0E5M3 read as FP16, or placed in a BF16 whose
    exponent keeps the top bit apart from the other four.
    """
    byte = stored.view(torch.uint8).to(torch.int32)
    if dtype == torch.float16:
        bits = byte << 7
    else:
        bits = (byte & 0x80) << 7 | (byte & 0x7F) << 4
    value = bits.to(torch.int16).view(dtype).float()
    value = value.view(-1, 4)[:, _inverse(FOUR_ORDER)].view(byte.shape)
    value = value.reshape(-1, 64)[:, _inverse(SCALE_ORDER)].reshape(byte.shape)
    return value.T * 2.0**-7


def dequantize(weight, scale, global_scale, dtype) -> torch.Tensor:
    """The matrix ``[N, K]`` that the kernel multiplies by, from what is stored."""
    table = torch.tensor(E2M1, device=weight.device)
    table = torch.cat([table, -table])
    exponent_bias = {torch.float16: 14, torch.bfloat16: 126}[dtype]
    factor = global_scale.float().reshape(()) * 2.0 ** (7 - exponent_bias)
    return table[unpack(weight)] * scales(scale, dtype).repeat_interleave(GROUP, dim=1) * factor


def interleave(stored: torch.Tensor) -> torch.Tensor:
    """Seed 004's permutation: scale rows 2g and 2g+1 alternate in runs of 8 bytes."""
    rows, columns = stored.shape
    pairs = stored.view(torch.uint8).reshape(rows // 2, 2, columns // 8, 8).permute(0, 2, 1, 3)
    return pairs.reshape(rows, columns).contiguous().view(stored.dtype)


def gemm(*, a, c, b_q_weight, b_scales, global_scale, size_m, size_n, size_k, **kwargs):
    """Twin of ``gptq_marlin_gemm`` for NVFP4."""
    weight = dequantize(b_q_weight, b_scales, global_scale, a.dtype)
    return (a.float() @ weight.T).to(a.dtype)


def fused_moe(
    hidden_states,
    w1,
    w2,
    w1_scale,
    w2_scale,
    gating_output,
    topk_weights,
    topk_ids,
    *,
    activation_of,
    w1_global_scale,
    w2_global_scale,
    routed_scaling_factor=None,
    **kwargs,
):
    """Twin of ``fused_marlin_moe``; ``activation_of(gate_up)`` is float32 torch."""
    dtype = hidden_states.dtype
    out = torch.zeros_like(hidden_states, dtype=torch.float32)
    for expert in topk_ids.unique().tolist():
        up = dequantize(w1[expert], w1_scale[expert], w1_global_scale[expert], dtype)
        down = dequantize(w2[expert], w2_scale[expert], w2_global_scale[expert], dtype)
        weight = (topk_weights * (topk_ids == expert)).sum(1, keepdim=True)
        hidden = activation_of((hidden_states.float() @ up.T).to(dtype).float()).to(dtype).float()
        out += weight * (hidden @ down.T)
    return (out * (1.0 if routed_scaling_factor is None else routed_scaling_factor)).to(dtype)


@contextlib.contextmanager
def installed(patch):
    """Put the twins where SGLang calls the kernels; ``patch`` is pytest's MonkeyPatch.

    The layout code is SGLang's own, padding and bias included: only the repack kernel, the GEMM, the MoE and
    the workspace are twins. The dense operator, registered for CUDA alone, is offered for the CPU meanwhile.
    """
    from sglang.srt.layers.moe import marlin_activation
    from sglang.srt.layers.moe.fused_moe_triton import fused_marlin_moe
    from sglang.srt.layers.quantization import marlin_utils, marlin_utils_fp4

    def moe(hidden_states, w1, w2, **kwargs):
        config = types.SimpleNamespace(
            activation=kwargs.pop("activation"),
            is_gated=kwargs.pop("is_gated"),
            gemm1_alpha=kwargs.pop("gemm1_alpha"),
            gemm1_beta=kwargs.pop("gemm1_beta"),
            gemm1_clamp_limit=kwargs.pop("clamp_limit"),
            swiglu_limit=None,
        )
        return fused_moe(
            hidden_states,
            w1,
            w2,
            activation_of=lambda x: marlin_activation.reference(config, x),
            **kwargs,
        )

    def workspace(device, max_blocks_per_sm=1):
        return torch.zeros(4, dtype=torch.int, device=device)

    patch.setattr(marlin_utils_fp4, "gptq_marlin_repack", repack, raising=False)
    patch.setattr(marlin_utils_fp4, "gptq_marlin_gemm", gemm, raising=False)
    patch.setattr(marlin_utils_fp4, "marlin_make_workspace", workspace)
    patch.setattr(marlin_utils_fp4, "should_use_atomic_add_reduce", lambda **kwargs: False)
    patch.setattr(marlin_utils, "marlin_make_workspace", workspace)
    patch.setattr(fused_marlin_moe, "fused_marlin_moe", moe)
    library = torch.library.Library("sglang", "IMPL")
    library.impl("apply_fp4_marlin_linear", _undecorated(marlin_utils_fp4, "apply_fp4_marlin_linear"), "CPU")
    try:
        yield
    finally:
        library._destroy()


def _undecorated(module, name):
    """A module's function without its decorators, bound to the module as it is (patched names included)."""
    tree = ast.parse(inspect.getsource(module))
    (node,) = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name]
    node.decorator_list = []
    scope = dict(vars(module))
    exec(
        compile(ast.Module([node], []), module.__file__, "exec", flags=__future__.annotations.compiler_flag),
        scope,
    )
    made = scope[name]
    return types.FunctionType(made.__code__, vars(module), name, made.__defaults__)
