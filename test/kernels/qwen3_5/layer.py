# SPDX-License-Identifier: Apache-2.0
"""Random weights, states and inputs of one layer, on any device, from a seed."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sglang.srt.mega.models.qwen3_5.shape import CONV_TAPS, GDN_DIM, HEAD_DIM, Shape

SLOTS = 12
CONTEXT = 700
CACHE_SLOTS = 9 * CONTEXT


class Source:
    """Seeded normal tensors on a device."""

    def __init__(self, device: torch.device | str, seed: int) -> None:
        self.device = torch.device(device)
        self.generator = torch.Generator(self.device).manual_seed(seed)

    def normal(self, *size: int, scale: float = 1.0, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        values = torch.randn(size, generator=self.generator, device=self.device, dtype=torch.float32)
        return values.mul_(scale).to(dtype)

    def permutation(self, count: int) -> torch.Tensor:
        return torch.randperm(count, generator=self.generator, device=self.device)


@dataclass
class Moe:
    """The MoE half of a layer, and its norm."""

    norm: torch.Tensor
    router: torch.Tensor
    gate_up: torch.Tensor
    shared_gate: torch.Tensor
    w13: torch.Tensor
    w2: torch.Tensor
    shared_down: torch.Tensor

    @classmethod
    def random(cls, shape: Shape, source: Source) -> Moe:
        spread = shape.hidden**-0.5
        return cls(
            norm=source.normal(shape.hidden, scale=0.1),
            router=source.normal(shape.experts, shape.hidden, scale=spread),
            gate_up=source.normal(2 * shape.shared_inter, shape.hidden, scale=spread),
            shared_gate=source.normal(1, shape.hidden, scale=spread),
            w13=source.normal(shape.experts, 2 * shape.inter, shape.hidden, scale=spread),
            w2=source.normal(shape.experts, shape.hidden, shape.inter, scale=shape.inter**-0.5),
            shared_down=source.normal(shape.hidden, shape.shared_inter, scale=shape.shared_inter**-0.5),
        )


@dataclass
class Gdn:
    """A gated delta net, its norm and its states."""

    norm: torch.Tensor
    w_qkvz: torch.Tensor
    w_ba: torch.Tensor
    conv_weight: torch.Tensor
    a_log: torch.Tensor
    dt_bias: torch.Tensor
    gated_norm: torch.Tensor
    out: torch.Tensor
    conv_state: torch.Tensor
    state: torch.Tensor

    @classmethod
    def random(cls, shape: Shape, source: Source) -> Gdn:
        spread = shape.hidden**-0.5
        state_dtype = torch.bfloat16 if shape.state_bf16 else torch.float32
        return cls(
            norm=source.normal(shape.hidden, scale=0.1),
            w_qkvz=source.normal(shape.qkv + shape.gdn_inner, shape.hidden, scale=spread),
            w_ba=source.normal(2 * shape.value_heads, shape.hidden, scale=spread),
            conv_weight=source.normal(shape.qkv, CONV_TAPS, scale=0.5),
            a_log=source.normal(shape.value_heads, dtype=torch.float32),
            dt_bias=source.normal(shape.value_heads, dtype=torch.float32),
            gated_norm=1 + source.normal(GDN_DIM, scale=0.1, dtype=torch.float32),
            out=source.normal(shape.hidden, shape.gdn_inner, scale=shape.gdn_inner**-0.5),
            conv_state=source.normal(SLOTS, shape.qkv, CONV_TAPS - 1),
            state=source.normal(SLOTS, shape.value_heads, GDN_DIM, GDN_DIM, scale=0.3, dtype=state_dtype),
        )


@dataclass
class Attention:
    """Full attention, its norms and its cache."""

    norm: torch.Tensor
    qkv: torch.Tensor
    q_norm: torch.Tensor
    k_norm: torch.Tensor
    out: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor

    @classmethod
    def random(cls, shape: Shape, source: Source, cache_slots: int = CACHE_SLOTS) -> Attention:
        return cls(
            norm=source.normal(shape.hidden, scale=0.1),
            qkv=source.normal(shape.attention_channels, shape.hidden, scale=shape.hidden**-0.5),
            q_norm=source.normal(HEAD_DIM, scale=0.1),
            k_norm=source.normal(HEAD_DIM, scale=0.1),
            out=source.normal(shape.hidden, shape.attention_inner, scale=shape.attention_inner**-0.5),
            k_cache=source.normal(cache_slots, shape.kv_heads, HEAD_DIM),
            v_cache=source.normal(cache_slots, shape.kv_heads, HEAD_DIM),
        )


@dataclass
class Batch:
    """Rows of a step. ``live`` are those that are no padding; lengths include the new token."""

    state_index: torch.Tensor
    seq_lens: torch.Tensor
    positions: torch.Tensor
    req_index: torch.Tensor
    cache_slot: torch.Tensor
    req_to_token: torch.Tensor
    cos_sin: torch.Tensor
    live: list[int]

    @classmethod
    def random(
        cls, shape: Shape, source: Source, rows: int, lengths: list[int], padding: tuple[int, ...] = ()
    ) -> Batch:
        """Row m has ``lengths[m]`` tokens at scattered slots; rows in ``padding`` look like graph padding."""
        device, requests = source.device, len(lengths)
        longest = max(lengths)
        slots = 1 + source.permutation(requests * longest).reshape(requests, longest)
        req_to_token = slots.to(torch.int32)
        live = [m for m in range(rows) if m not in padding]
        state_index = source.permutation(SLOTS)[:rows].to(torch.int32)
        state_index[list(padding)] = -1
        seq_lens = torch.tensor([lengths[m] if m in live else 1 for m in range(rows)], dtype=torch.int32)
        req_index = torch.tensor([m if m in live else 0 for m in range(rows)])
        cache_slot = torch.tensor([int(slots[m, lengths[m] - 1]) if m in live else 0 for m in range(rows)])
        angle = torch.arange(longest)[:, None] * 1e4 ** (
            -torch.arange(shape.rotary // 2) / (shape.rotary // 2)
        )
        positions = (seq_lens - 1).long()
        return cls(
            state_index=state_index,
            seq_lens=seq_lens.to(device),
            positions=positions.to(device),
            req_index=req_index.to(device),
            cache_slot=cache_slot.to(device),
            req_to_token=req_to_token,
            cos_sin=torch.cat((angle.cos(), angle.sin()), -1).float().to(device),
            live=live,
        )
