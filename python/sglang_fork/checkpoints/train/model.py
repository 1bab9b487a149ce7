# SPDX-License-Identifier: Apache-2.0
"""The tiny Qwen3.5 and its MTP layer as torch modules, parameters named as in the checkpoint.

Whole sequences only: no cache, every expert computed and weighted (unchosen ones by zero), which is what
training wants and what makes a step's shapes fixed. Test: ``test/unit/checkpoints/test_train_model.py`` holds
the logits to transformers' and the MTP layer's unrolled steps to one step at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from sglang_fork.checkpoints import qwen3_5 as shape
from sglang_fork.checkpoints import tokenizer
from sglang_fork.checkpoints.train.gated_delta import gated_delta

EPSILON = 1e-6
ROTARY = 64
ROPE_THETA = 10_000_000.0
DROPOUT = 0.1


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


class Norm(nn.Module):
    """RMS norm with a zero-centred gain."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return _rms(x.float()) * (1.0 + self.weight.float())


class GatedNorm(nn.Module):
    """RMS norm with a plain gain, then a SiLU gate."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        return _rms(x.float()) * self.weight * functional.silu(gate.float())


def _rms(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPSILON)


class DeltaNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        keys = shape.GDN_KEY_HEADS * shape.GDN_HEAD_DIM
        values = shape.GDN_VALUE_HEADS * shape.GDN_HEAD_DIM
        channels = 2 * keys + values
        self.widths = (keys, keys, values)
        self.in_proj_qkv = linear(shape.HIDDEN, channels)
        self.in_proj_z = linear(shape.HIDDEN, values)
        self.in_proj_b = linear(shape.HIDDEN, shape.GDN_VALUE_HEADS)
        self.in_proj_a = linear(shape.HIDDEN, shape.GDN_VALUE_HEADS)
        self.conv1d = nn.Conv1d(channels, channels, shape.CONV_WIDTH, groups=channels, bias=False)
        self.A_log = nn.Parameter(torch.zeros(shape.GDN_VALUE_HEADS))
        self.dt_bias = nn.Parameter(torch.zeros(shape.GDN_VALUE_HEADS))
        self.norm = GatedNorm(shape.GDN_HEAD_DIM)
        self.out_proj = linear(values, shape.HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        heads = (-1, shape.GDN_HEAD_DIM)
        padded = functional.pad(self.in_proj_qkv(x).transpose(1, 2), (shape.CONV_WIDTH - 1, 0))
        mixed = functional.silu(self.conv1d(padded)).transpose(1, 2)
        query, key, value = (part.unflatten(-1, heads) for part in mixed.split(self.widths, -1))
        repeat = shape.GDN_VALUE_HEADS // shape.GDN_KEY_HEADS
        query, key = (part.repeat_interleave(repeat, 2) for part in (query, key))
        step = functional.softplus(self.in_proj_a(x).float() + self.dt_bias.float())
        beta = self.in_proj_b(x).float().sigmoid()
        with torch.autocast(x.device.type, enabled=False):
            out = gated_delta(query, key, value, -self.A_log.float().exp() * step, beta)
        return self.out_proj(self.norm(out, self.in_proj_z(x).unflatten(-1, heads)).flatten(-2))


class Attention(nn.Module):
    """Gated full attention with normalised queries and keys and ``ROTARY`` rotary channels."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj = linear(shape.HIDDEN, 2 * shape.HEADS * shape.HEAD_DIM)
        self.k_proj = linear(shape.HIDDEN, shape.KV_HEADS * shape.HEAD_DIM)
        self.v_proj = linear(shape.HIDDEN, shape.KV_HEADS * shape.HEAD_DIM)
        self.o_proj = linear(shape.HEADS * shape.HEAD_DIM, shape.HIDDEN)
        self.q_norm = Norm(shape.HEAD_DIM)
        self.k_norm = Norm(shape.HEAD_DIM)

    def project(self, x: Tensor, first: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Queries, keys, values (batch, heads, tokens, width; positions from ``first`` on) and the gate."""
        query, gate = self.q_proj(x).unflatten(-1, (shape.HEADS, -1)).chunk(2, -1)
        key, value = (p(x).unflatten(-1, (shape.KV_HEADS, -1)) for p in (self.k_proj, self.v_proj))
        query, key = rotate(self.q_norm(query), first), rotate(self.k_norm(key), first)
        repeat = shape.HEADS // shape.KV_HEADS
        key, value = (part.repeat_interleave(repeat, 2) for part in (key, value))
        dtype = value.dtype
        return (
            query.to(dtype).transpose(1, 2),
            key.to(dtype).transpose(1, 2),
            value.transpose(1, 2),
            gate.flatten(-2),
        )

    def finish(self, out: Tensor, gate: Tensor) -> Tensor:
        return self.o_proj(out.transpose(1, 2).flatten(-2) * gate.sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        query, key, value, gate = self.project(x, 0)
        out = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.finish(out, gate)


def rotate(x: Tensor, first: int) -> Tensor:
    """Rotary embedding of the first ``ROTARY`` channels of (batch, tokens, heads, width)."""
    half = ROTARY // 2
    frequency = ROPE_THETA ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    position = torch.arange(first, first + x.shape[1], device=x.device, dtype=torch.float32)
    angle = (position[:, None] * frequency)[:, None, :]
    cos, sin = angle.cos(), angle.sin()
    low, high, rest = x[..., :half], x[..., half:ROTARY], x[..., ROTARY:]
    return torch.cat((low * cos - high * sin, high * cos + low * sin, rest), -1)


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        width = shape.EXPERT_WIDTH
        self.gate_up_proj = nn.Parameter(torch.empty(shape.EXPERTS, 2 * width, shape.HIDDEN))
        self.down_proj = nn.Parameter(torch.empty(shape.EXPERTS, shape.HIDDEN, width))

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        """``weights``: (..., experts), zero for experts not chosen."""
        both = functional.linear(x, self.gate_up_proj.flatten(0, 1)).unflatten(-1, (shape.EXPERTS, -1))
        gate, up = both.chunk(2, -1)
        inner = functional.silu(gate) * up * weights.unsqueeze(-1).to(up.dtype)
        return functional.linear(inner.flatten(-2), self.down_proj.transpose(0, 1).flatten(1))


class SharedExpert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj = linear(shape.HIDDEN, shape.SHARED_WIDTH)
        self.up_proj = linear(shape.HIDDEN, shape.SHARED_WIDTH)
        self.down_proj = linear(shape.SHARED_WIDTH, shape.HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Moe(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = linear(shape.HIDDEN, shape.EXPERTS)
        self.experts = Experts()
        self.shared_expert = SharedExpert()
        self.shared_expert_gate = linear(shape.HIDDEN, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The output and the imbalance of the routing: 1 where the experts share the tokens evenly."""
        with torch.autocast(x.device.type, enabled=False):
            share = functional.linear(x.float(), self.gate.weight.float()).softmax(-1)
        chosen = share >= share.topk(shape.TOP_K).values[..., -1:]
        weights = share * chosen
        weights = weights / weights.sum(-1, keepdim=True)
        out = self.experts(x, weights) + self.shared_expert_gate(x).sigmoid() * self.shared_expert(x)
        load = chosen.float().flatten(0, -2).mean(0) / shape.TOP_K
        return out, shape.EXPERTS * (load * share.flatten(0, -2).mean(0)).sum()


class Layer(nn.Module):
    def __init__(self, full_attention: bool) -> None:
        super().__init__()
        self.input_layernorm = Norm(shape.HIDDEN)
        if full_attention:
            self.self_attn = Attention()
        else:
            self.linear_attn = DeltaNet()
        self.post_attention_layernorm = Norm(shape.HIDDEN)
        self.mlp = Moe()
        self.dropout = nn.Dropout(DROPOUT)

    def mixer(self) -> nn.Module:
        return self.self_attn if hasattr(self, "self_attn") else self.linear_attn

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.feed(x, self.mixer()(self.input_layernorm(x)))

    def feed(self, x: Tensor, mixed: Tensor) -> tuple[Tensor, Tensor]:
        """The rest of the layer, from the mixer's output on."""
        x = x + self.dropout(mixed)
        out, imbalance = self.mlp(self.post_attention_layernorm(x))
        return x + self.dropout(out), imbalance


class Trunk(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(tokenizer.VOCAB_SIZE, shape.HIDDEN)
        kinds = shape.config()["layer_types"]
        self.layers = nn.ModuleList(Layer(kind == "full_attention") for kind in kinds)
        self.norm = Norm(shape.HIDDEN)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        x, imbalance = self.embed_tokens(tokens).float(), tokens.new_zeros((), dtype=torch.float32)
        for layer in self.layers:
            x, more = layer(x)
            imbalance = imbalance + more
        return self.norm(x), imbalance


class Mtp(nn.Module):
    """The draft layer, applied again to its own output for every further draft step."""

    def __init__(self) -> None:
        super().__init__()
        self.pre_fc_norm_embedding = Norm(shape.HIDDEN)
        self.pre_fc_norm_hidden = Norm(shape.HIDDEN)
        self.fc = linear(2 * shape.HIDDEN, shape.HIDDEN)
        self.layers = nn.ModuleList([Layer(full_attention=True)])
        self.norm = Norm(shape.HIDDEN)

    def forward(self, hidden: Tensor, embedded: list[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """For each draft step: its normed states (batch, tokens, hidden) and its routing's imbalance.

        ``hidden``: the target's normed states. ``embedded[k]``: embeddings of the tokens ``k + 1`` after
        each. Step ``k`` at token ``t`` sees what a server's draft step sees: the first step's keys up to
        ``t``, which the target's states made, and after them its own draft's keys of steps 2 to ``k``.
        """
        layer = self.layers[0]
        attention = layer.self_attn
        keys: list[Tensor] = []
        values: list[Tensor] = []
        for step, following in enumerate(embedded):
            joined = torch.cat((self.pre_fc_norm_embedding(following), self.pre_fc_norm_hidden(hidden)), -1)
            x = self.fc(joined).float()
            query, key, value, gate = attention.project(layer.input_layernorm(x), step)
            keys.append(key)
            values.append(value)
            if step == 0:
                mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            else:
                mixed = attend_with_own_steps(query, keys, values)
            x, imbalance = layer.feed(x, attention.finish(mixed, gate))
            hidden = self.norm(x)
            yield hidden, imbalance


def attend_with_own_steps(query: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """Causal attention to the first step's keys, and to the later steps' keys of the same token."""
    tokens, scale = query.shape[2], query.shape[-1] ** -0.5
    future = torch.ones(tokens, tokens, dtype=torch.bool, device=query.device).triu(1)
    past = (query @ keys[0].transpose(-1, -2)).float().masked_fill(future, float("-inf"))
    own = torch.stack([(query * key).float().sum(-1) for key in keys[1:]], -1)
    weights = (torch.cat((past, own), -1) * scale).softmax(-1).to(query.dtype)
    out = weights[..., :tokens] @ values[0]
    for index, value in enumerate(values[1:]):
        out = out + weights[..., tokens + index, None] * value
    return out


class Qwen35(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = Trunk()
        self.lm_head = linear(shape.HIDDEN, tokenizer.VOCAB_SIZE)
        self.mtp = Mtp()

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits (FP32), normed states and the routing's imbalance."""
        hidden, imbalance = self.model(tokens)
        return self.lm_head(hidden).float(), hidden, imbalance

    def draft(self, hidden: Tensor, tokens: Tensor, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Logits of each draft step and its imbalance. ``tokens``: (batch, tokens of ``hidden`` + steps)."""
        count = hidden.shape[1]
        embedded = [self.model.embed_tokens(tokens[:, k : k + count]) for k in range(1, steps + 1)]
        for state, imbalance in self.mtp(hidden, embedded):
            yield self.lm_head(state).float(), imbalance

    def initialise(self, seed: int) -> None:
        """Fresh weights: normal, scaled by the input width; layers' outputs smaller by their number."""
        torch.manual_seed(seed)
        small = (2 * shape.LAYERS) ** -0.5
        for name, weight in self.named_parameters():
            if name.endswith("A_log"):
                nn.init.uniform_(weight, 0.0, math.log(16))
            if name.endswith("dt_bias"):
                nn.init.uniform_(weight, -6.0, -2.0)
            if weight.dim() < 2:
                continue
            if name.endswith("conv1d.weight"):
                nn.init.normal_(weight, std=shape.CONV_WIDTH**-0.5)
                continue
            std = 1.0 if "embed_tokens" in name else weight.shape[-1] ** -0.5
            if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight", "down_proj")):
                std *= small
            nn.init.normal_(weight, std=0.5 * std if name == "lm_head.weight" else std)

    def count(self) -> int:
        return sum(math.prod(weight.shape) for weight in self.parameters())
