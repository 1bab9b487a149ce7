# SPDX-License-Identifier: Apache-2.0
"""One function a fused step of Qwen3.5's plain decode, on CUDA or emulated on the CPU.

A layer is six launches with linear attention (``gdn_front``, ``gdn_step``, ``gdn_out``, ``moe_route``,
``moe_up``, ``moe_down``) and seven with full attention (``attn_front``, ``attn_decode``, ``attn_merge``,
``attn_out`` for the first three). ``stream_entry`` opens the step. The residual stream lives in
``Workspace.x``, already summed: after the last layer it is the input of the model's final norm, with no
residual.

Every weight is read in the layout in which SGLang loads it. Rows whose ``state_index`` is negative are
padding: they change no state and no cache, and pick no expert. Kernels and stock differ by rounding alone;
the headers in ``sgl-kernel/csrc/mega/qwen3_5`` state the rounding points, ``test/kernels/qwen3_5`` holds
them to float64.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch

from sglang.srt.mega.device.kernel import Kernel, load_kernel
from sglang.srt.mega.models.qwen3_5.shape import CONV_TAPS, GDN_DIM, Shape
from sglang.srt.mega.models.qwen3_5.tactics import BUCKETS, ENTRIES, bucket_of, kernel_spec, launch_config
from sglang.srt.mega.models.qwen3_5.workspace import Workspace


class Kernels:
    """The kernels of one shape on one device, loaded (and compiled where the cache lacks them) at
    construction.

    ``buckets`` and ``entries``: what to load. ``pdl=False`` and ``changes`` (entry to tuned constants) are
    for measurements.
    """

    def __init__(
        self,
        shape: Shape,
        device: torch.device | str,
        buckets: Iterable[int] = BUCKETS,
        entries: Iterable[str] = ENTRIES,
        *,
        pdl: bool = True,
        changes: Mapping[str, Mapping[str, int]] | None = None,
    ) -> None:
        self.shape = shape
        self.device = torch.device(device)
        self._pdl = pdl
        self._kernels: dict[tuple[str, int], Kernel] = {}
        loaded: dict[object, Kernel] = {}
        for bucket in buckets:
            for entry in entries:
                spec = kernel_spec(entry, shape, bucket, (changes or {}).get(entry))
                if spec not in loaded:
                    loaded[spec] = load_kernel(spec, self.device)
                self._kernels[entry, bucket] = loaded[spec]

    def stream_entry(self, hidden: torch.Tensor, residual: torch.Tensor | None, space: Workspace) -> None:
        """``space.x`` = hidden + residual, rounded to bf16, with its sums of squares. hidden: [rows,
        hidden] bf16.
        """
        self._check("hidden", hidden, torch.bfloat16, (hidden.shape[0], self.shape.hidden))
        rows = hidden.shape[0]
        if residual is not None:
            self._check("residual", residual, torch.bfloat16, (rows, self.shape.hidden))
        self._launch("stream_entry", rows, hidden, residual, space.x, space.square_sums)

    def gdn_front(
        self,
        space: Workspace,
        norm_weight: torch.Tensor,
        w_qkvz: torch.Tensor,
        w_ba: torch.Tensor,
        conv_weight: torch.Tensor,
        conv_state: torch.Tensor,
        state_index: torch.Tensor,
    ) -> None:
        """Input norm, ``in_proj_qkvz``, ``in_proj_ba`` and the convolution, whose state is updated in place.

        norm_weight: [hidden] (``input_layernorm.weight``, the gain is 1 + weight); conv_weight: [qkv, 4];
        conv_state: [slots, qkv, 3] bf16, slots may be strided; state_index: [rows] int32.
        """
        shape, rows = self.shape, self._rows(state_index)
        self._check("norm_weight", norm_weight, torch.bfloat16, (shape.hidden,))
        self._check("w_qkvz", w_qkvz, torch.bfloat16, (shape.qkv + shape.gdn_inner, shape.hidden))
        self._check("w_ba", w_ba, torch.bfloat16, (2 * shape.value_heads, shape.hidden))
        self._check("conv_weight", conv_weight, torch.bfloat16, (shape.qkv, CONV_TAPS))
        self._check_slots("conv_state", conv_state, torch.bfloat16, (shape.qkv, CONV_TAPS - 1))
        self._launch(
            "gdn_front",
            rows,
            space.x,
            space.square_sums,
            norm_weight,
            w_qkvz,
            w_ba,
            conv_weight,
            conv_state,
            ctypes.c_longlong(conv_state.stride(0)),
            state_index,
            space.mixed_qkv,
            space.z,
            space.ba,
            rows,
        )

    def gdn_step(
        self,
        space: Workspace,
        a_log: torch.Tensor,
        dt_bias: torch.Tensor,
        state: torch.Tensor,
        state_index: torch.Tensor,
    ) -> None:
        """The recurrence, the state updated in place.

        a_log, dt_bias: [value heads] fp32; state: [slots, value heads, 128 (value), 128 (key)], slots may
        be strided.
        """
        shape, rows = self.shape, self._rows(state_index)
        self._check("a_log", a_log, torch.float32, (shape.value_heads,))
        self._check("dt_bias", dt_bias, torch.float32, (shape.value_heads,))
        dtype = torch.bfloat16 if shape.state_bf16 else torch.float32
        self._check_slots("state", state, dtype, (shape.value_heads, GDN_DIM, GDN_DIM))
        stride = ctypes.c_longlong(state.stride(0))
        self._launch(
            "gdn_step",
            rows,
            space.mixed_qkv,
            space.ba,
            a_log,
            dt_bias,
            state,
            stride,
            state_index,
            space.core,
        )

    def gdn_out(self, space: Workspace, weight: torch.Tensor, norm_weight: torch.Tensor, rows: int) -> None:
        """Gated norm, ``out_proj`` and the addition to the stream. weight: [hidden, value heads * 128] bf16;
        norm_weight: [128] fp32.
        """
        shape = self.shape
        self._check("weight", weight, torch.bfloat16, (shape.hidden, shape.gdn_inner))
        self._check("norm_weight", norm_weight, torch.float32, (GDN_DIM,))
        self._launch(
            "gdn_out", rows, weight, space.core, space.z, norm_weight, space.x, space.square_sums, rows
        )

    def attn_front(
        self, space: Workspace, norm_weight: torch.Tensor, weight: torch.Tensor, rows: int
    ) -> None:
        """Input norm and ``qkv_proj``. weight: [2 (heads + kv_heads) * 256, hidden] bf16."""
        shape = self.shape
        self._check("norm_weight", norm_weight, torch.bfloat16, (shape.hidden,))
        self._check("weight", weight, torch.bfloat16, (shape.attention_channels, shape.hidden))
        self._launch("attn_front", rows, space.x, space.square_sums, norm_weight, weight, space.qkv, rows)

    def attn_decode(
        self,
        space: Workspace,
        q_norm: torch.Tensor,
        k_norm: torch.Tensor,
        cos_sin: torch.Tensor,
        positions: torch.Tensor,
        axis_map: torch.Tensor | None,
        seq_lens: torch.Tensor,
        req_to_token: torch.Tensor,
        req_index: torch.Tensor,
        cache_slot: torch.Tensor,
        state_index: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
    ) -> None:
        """QK norm, rotary embedding, the new key and value into the cache, attention over each split of the
        context.

        q_norm, k_norm: [256] bf16 (gain 1 + weight); cos_sin: [positions, rotary] fp32; positions: [rows]
        int64, or [3, rows] with axis_map [rotary / 2] int64 where the shape has ``mrope``; seq_lens: [rows]
        int32, the new token included; req_to_token: [requests, context] int32; req_index, cache_slot:
        [rows] int64 (``req_pool_indices``, ``out_cache_loc``); k_cache, v_cache: [slots, kv_heads, 256]
        bf16.
        """
        shape, rows = self.shape, self._rows(state_index)
        for name, tensor in (("q_norm", q_norm), ("k_norm", k_norm)):
            self._check(name, tensor, torch.bfloat16, (256,))
        self._check("cos_sin", cos_sin, torch.float32, (cos_sin.shape[0], shape.rotary))
        self._check("seq_lens", seq_lens, torch.int32, (rows,))
        self._check("req_index", req_index, torch.int64, (rows,))
        self._check("cache_slot", cache_slot, torch.int64, (rows,))
        if shape.mrope != (axis_map is not None) or positions.dim() != 1 + shape.mrope:
            raise ValueError("positions with axes need a shape with mrope and an axis map, others neither")
        if positions.dtype != torch.int64 or positions.stride(-1) != 1:
            raise ValueError("positions must be int64 and contiguous over rows")
        for name, tensor in (("k_cache", k_cache), ("v_cache", v_cache)):
            self._check_slots(name, tensor, torch.bfloat16, (shape.kv_heads, 256))
        if k_cache.stride(0) != v_cache.stride(0):
            raise ValueError("k_cache and v_cache differ in stride")
        if req_to_token.dtype != torch.int32 or req_to_token.stride(1) != 1:
            raise ValueError("req_to_token must be int32 and contiguous over tokens")
        self._launch(
            "attn_decode",
            rows,
            space.qkv,
            q_norm,
            k_norm,
            cos_sin,
            positions,
            ctypes.c_longlong(positions.stride(0) if shape.mrope else 0),
            axis_map,
            seq_lens,
            req_to_token,
            ctypes.c_longlong(req_to_token.stride(0)),
            req_index,
            cache_slot,
            state_index,
            k_cache,
            v_cache,
            ctypes.c_longlong(k_cache.stride(0)),
            space.partial,
            space.stats,
        )

    def attn_merge(self, space: Workspace, rows: int) -> None:
        """Joins the splits and applies the output gate."""
        self._launch("attn_merge", rows, space.partial, space.stats, space.qkv, space.attention)

    def attn_out(self, space: Workspace, weight: torch.Tensor, rows: int) -> None:
        """``o_proj`` and the addition to the stream. weight: [hidden, heads * 256] bf16."""
        self._check("weight", weight, torch.bfloat16, (self.shape.hidden, self.shape.attention_inner))
        self._launch("attn_out", rows, weight, space.attention, space.x, space.square_sums, rows)

    def moe_route(
        self,
        space: Workspace,
        norm_weight: torch.Tensor,
        router: torch.Tensor,
        gate_up: torch.Tensor,
        shared_gate: torch.Tensor,
        rows: int,
    ) -> None:
        """Post-attention norm, router logits, the shared expert's ``gate_up_proj`` with SwiGLU, its sigmoid
        gate.

        router: [experts, hidden] (``mlp.gate.weight``); gate_up: [2 shared_inter, hidden]; shared_gate: [1,
        hidden].
        """
        shape = self.shape
        self._check("norm_weight", norm_weight, torch.bfloat16, (shape.hidden,))
        self._check("router", router, torch.bfloat16, (shape.experts, shape.hidden))
        self._check("gate_up", gate_up, torch.bfloat16, (2 * shape.shared_inter, shape.hidden))
        self._check("shared_gate", shared_gate, torch.bfloat16, (1, shape.hidden))
        self._launch(
            "moe_route",
            rows,
            space.x,
            space.square_sums,
            norm_weight,
            router,
            gate_up,
            shared_gate,
            space.normed,
            space.logits,
            space.shared_act,
            space.shared_scale,
            rows,
        )

    def moe_up(self, space: Workspace, w13: torch.Tensor, state_index: torch.Tensor) -> None:
        """Top-k, then the selected experts' gate and up rows with SwiGLU. w13: [experts, 2 inter, hidden],
        gate first.
        """
        shape, rows = self.shape, self._rows(state_index)
        self._check("w13", w13, torch.bfloat16, (shape.experts, 2 * shape.inter, shape.hidden))
        self._launch("moe_up", rows, space.normed, space.logits, w13, state_index, space.act, rows)

    def moe_down(
        self, space: Workspace, w2: torch.Tensor, shared_down: torch.Tensor, state_index: torch.Tensor
    ) -> None:
        """Down projections, routing weights, the shared expert's share, the addition to the stream.

        w2: [experts, hidden, inter]; shared_down: [hidden, shared_inter].
        """
        shape, rows = self.shape, self._rows(state_index)
        self._check("w2", w2, torch.bfloat16, (shape.experts, shape.hidden, shape.inter))
        self._check("shared_down", shared_down, torch.bfloat16, (shape.hidden, shape.shared_inter))
        self._launch(
            "moe_down",
            rows,
            space.act,
            space.shared_act,
            space.logits,
            w2,
            shared_down,
            space.shared_scale,
            state_index,
            space.x,
            space.square_sums,
            rows,
        )

    def _launch(self, entry: str, rows: int, *arguments: object) -> None:
        bucket = bucket_of(rows)
        kernel = self._kernels.get((entry, bucket))
        if kernel is None:
            raise KeyError(f"{entry} was not loaded for {bucket} rows")
        config = launch_config(kernel.spec, self.shape, rows)
        kernel.launch(config if self._pdl else replace(config, pdl=False), *arguments)

    def _rows(self, state_index: torch.Tensor) -> int:
        self._check("state_index", state_index, torch.int32, (state_index.shape[0],))
        return int(state_index.shape[0])

    def _check(self, name: str, tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        if tensor.dtype != dtype or tuple(tensor.shape) != shape or not tensor.is_contiguous():
            raise ValueError(
                f"{name} must be contiguous {dtype} {shape}, is {tensor.dtype} {tuple(tensor.shape)} "
                f"with strides {tensor.stride()}"
            )
        if tensor.device.type != self.device.type:
            raise ValueError(f"{name} is on {tensor.device}, the kernels on {self.device}")

    def _check_slots(
        self, name: str, tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]
    ) -> None:
        if tensor.dtype != dtype or tuple(tensor.shape[1:]) != shape or not tensor[0].is_contiguous():
            raise ValueError(
                f"{name} must be {dtype} [slots, {', '.join(map(str, shape))}], contiguous within a slot; "
                f"is {tensor.dtype} {tuple(tensor.shape)} with strides {tensor.stride()}"
            )
