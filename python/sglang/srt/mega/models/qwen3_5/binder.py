# SPDX-License-Identifier: Apache-2.0
"""Binds the kernels to the layers' loaded weights, read in the layout in which SGLang holds them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from sglang.srt.mega import derived
from sglang.srt.mega.models.qwen3_5.choices import ExpertChoices
from sglang.srt.mega.models.qwen3_5.kernels import Kernels
from sglang.srt.mega.models.qwen3_5.shape import HEAD_DIM, Shape
from sglang.srt.mega.models.qwen3_5.slots import mixer_slot
from sglang.srt.mega.models.qwen3_5.stages import Stream
from sglang.srt.mega.models.qwen3_5.workspace import Workspace
from sglang.srt.mega.step import Kernel
from sglang.srt.mega.view import StepView

SGLANG_READS = {
    "body srt/models/qwen3_5.py::Qwen3_5GatedDeltaNet.__init__",
    "body srt/models/qwen3_5.py::Qwen3_5AttentionDecoderLayer.__init__",
    "body srt/models/qwen2_moe.py::Qwen2MoeSparseMoeBlock.__init__",
    "sig srt/layers/attention/hybrid_linear_attn_backend.py::MambaAttnBackendBase._track_mamba_state_decode",
}


def shape_of(backbone: Any) -> Shape:
    """The rank's sizes, from the loaded modules. Raises ``ValueError`` for sizes that no kernel is built
    for.
    """
    config = backbone.config
    gdn = next((layer.linear_attn for layer in backbone.layers if mixer_slot(layer) == "gdn"), None)
    attention = next((layer for layer in backbone.layers if mixer_slot(layer) == "attention"), None)
    if gdn is None or attention is None:
        raise ValueError("the model lacks GatedDeltaNet or attention layers")
    if gdn.attn_tp_size != 1:
        raise ValueError(f"attention is split over {gdn.attn_tp_size} ranks")
    return Shape(
        hidden=config.hidden_size,
        key_heads=gdn.num_k_heads,
        value_heads=gdn.num_v_heads,
        heads=attention.num_heads,
        kv_heads=attention.num_kv_heads,
        experts=config.num_experts,
        top_k=config.num_experts_per_tok,
        inter=config.moe_intermediate_size,
        shared_inter=config.shared_expert_intermediate_size,
        rotary=attention.rotary_emb.rotary_dim,
        epsilon=config.rms_norm_eps,
        state_bf16=config.mamba2_cache_params.dtype.temporal == torch.bfloat16,
    )


@dataclass
class Chain:
    """What the kernels of a step share: the compiled kernels, their buffers and this step's index tensors."""

    kernels: Kernels
    space: Workspace
    tables: dict[int, torch.Tensor] = field(default_factory=dict)
    copies: dict[str, int] = field(default_factory=dict)

    def in_fp32(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor, or its FP32 copy, which is counted under ``name``."""
        if tensor.dtype == torch.float32:
            return tensor.detach()
        copy = tensor.detach().float()
        self.copies[name] = self.copies.get(name, 0) + derived.nbytes(copy)
        return copy

    def enter(self, stream: Stream) -> int:
        """Bring the stream into ``space.x`` unless it is there; returns the rows."""
        rows = stream.residual.shape[0]
        if stream.squares is None or stream.residual.data_ptr() != self.space.x.data_ptr():
            delta = stream.residual if stream.delta is None else stream.delta
            self.kernels.stream_entry(delta, None if stream.delta is None else stream.residual, self.space)
        return rows

    def cos_sin(self, rotary: Any) -> torch.Tensor:
        """The rotary table in fp32: the layers' own on CUDA; a CPU engine keeps it in BF16, so one copy is
        made.
        """
        table = rotary.cos_sin_cache
        if table.data_ptr() not in self.tables:
            self.tables[table.data_ptr()] = self.in_fp32("rotary table", table)
        return self.tables[table.data_ptr()]

    def leave(self, rows: int) -> Stream:
        return Stream(self.space.x[:rows], squares=self.space.square_sums[:rows])


class Binder:
    """The kernels of one loaded backbone.

    ``mrope``: the model hands its backbone positions of three axes. Two small copies are made a GatedDeltaNet
    layer: ``dt_bias`` and the gated norm's weight in fp32. Everything else is read where SGLang loaded it.
    """

    def __init__(self, backbone: Any, mrope: bool) -> None:
        self.backbone, self.mrope = backbone, mrope
        self.choosers: dict[str, ExpertChoices] = {}
        self.chain: Chain | None = None
        self.refusal: str | None = None
        self.shape: Shape | None = None
        try:
            self.shape = shape_of(backbone)
        except ValueError as error:
            self.refusal = str(error)

    def unavailable(self, slot: str) -> str | None:
        """Why ``slot`` has no kernel for these weights, or None."""
        if self.refusal is not None:
            return self.refusal
        if slot == "attention" and self.mrope:
            rotary = next(layer.rotary_emb for layer in self.backbone.layers if mixer_slot(layer) == slot)
            if getattr(rotary, "axis_map", None) is None:
                return "positions have three axes and the rotary embedding has no map of them"
        if slot == "gdn" and self.backbone.config.mamba2_cache_params.dtype.conv != torch.bfloat16:
            return "the convolution state is not BF16"
        for layer in self.backbone.layers:
            if slot in (mixer_slot(layer), "moe"):
                for name, weight in weights_of(slot, layer).items():
                    wanted = torch.float32 if name == "a_log" else torch.bfloat16
                    if weight.dtype != wanted:
                        return f"layer {layer.layer_id}: {name} is {weight.dtype}, not {wanted}"
                    if not weight.is_contiguous():
                        return f"layer {layer.layer_id}: {name} is not contiguous"
        return None

    def bind(self, slots: Collection[str]) -> dict[tuple[str, int], Kernel]:
        """(slot, id of layer) -> kernel, for the wanted slots; compiles what the cache lacks."""
        if not slots or self.shape is None:
            return {}
        device = self.backbone.embed_tokens.weight.device
        shape = replace(self.shape, mrope=self.mrope)
        chain = self.chain = Chain(Kernels(shape, device), Workspace.allocate(shape, device))
        if "moe" in slots:
            self.choosers["moe"] = ExpertChoices(shape, chain.space)
        makers: dict[str, Callable[[Any, Chain], Kernel]] = {
            "gdn": bind_gated_delta_net,
            "attention": bind_attention,
            "moe": bind_moe,
        }
        return {
            (slot, id(layer)): makers[slot](layer, chain)
            for layer in self.backbone.layers
            for slot in (mixer_slot(layer), "moe")
            if slot in slots
        }

    def memory(self) -> str:
        """What was taken beside the loaded weights, in words; call it after ``bind``."""
        sizes = {} if self.chain is None else {"workspace": self.chain.space.nbytes(), **self.chain.copies}
        layers = [layer for layer in self.backbone.layers if mixer_slot(layer) == "attention"]
        heads = 0 if self.shape is None else self.shape.kv_heads
        return derived.describe(sizes, derived.kv_bytes_per_token(heads, HEAD_DIM, len(layers)))


def weights_of(slot: str, layer: Any) -> dict[str, torch.Tensor]:
    """The loaded weights that a slot reads."""
    if slot == "gdn":
        gdn = layer.linear_attn
        return {
            "norm": layer.input_layernorm.weight,
            "w_qkvz": gdn.in_proj_qkvz.weight,
            "w_ba": gdn.in_proj_ba.weight,
            "conv": gdn.attn.conv_weights,
            "a_log": gdn.A_log,
            "out": gdn.out_proj.weight,
        }
    if slot == "attention":
        return {
            "norm": layer.input_layernorm.weight,
            "qkv": layer.qkv_proj.weight,
            "q_norm": layer.q_norm.weight,
            "k_norm": layer.k_norm.weight,
            "out": layer.o_proj.weight,
        }
    moe = layer.mlp
    return {
        "norm": layer.post_attention_layernorm.weight,
        "router": moe.gate.weight,
        "gate_up": moe.shared_expert.gate_up_proj.weight,
        "shared_gate": moe.shared_expert_gate.weight,
        "w13": moe.experts.w13_weight,
        "w2": moe.experts.w2_weight,
        "shared_down": moe.shared_expert.down_proj.weight,
    }


def bind_gated_delta_net(layer: Any, chain: Chain) -> Kernel:
    """Slot ``gdn`` of one layer: three launches."""
    weight = weights_of("gdn", layer)
    dt_bias = chain.in_fp32("dt_bias", layer.linear_attn.dt_bias)
    norm = chain.in_fp32("gated norms", layer.linear_attn.norm.weight)

    def kernel(view: StepView, layer: Any, stream: Stream, forward_batch: Any) -> Stream:
        recurrent = view.recurrent
        cache = recurrent.pool.mamba2_layer_cache(layer.layer_id)
        conv, state, slots = cache.conv[0], cache.temporal, recurrent.slots
        rows = chain.enter(stream)
        run, space = chain.kernels, chain.space
        run.gdn_front(space, weight["norm"], weight["w_qkvz"], weight["w_ba"], weight["conv"], conv, slots)
        run.gdn_step(space, weight["a_log"], dt_bias, state, slots)
        run.gdn_out(space, weight["out"], norm, rows)
        # The radix cache's copies of the state: SGLang's own launch, after the last GatedDeltaNet layer.
        recurrent.backend._track_mamba_state_decode(forward_batch, conv, state, slots, layer.layer_id)
        return chain.leave(rows)

    return kernel


def bind_attention(layer: Any, chain: Chain) -> Kernel:
    """Slot ``attention`` of one layer: four launches."""
    weight = weights_of("attention", layer)
    axes = layer.rotary_emb.axis_map if chain.kernels.shape.mrope else None
    cos_sin = chain.cos_sin(layer.rotary_emb)

    def kernel(
        view: StepView, layer: Any, stream: Stream, positions: torch.Tensor, forward_batch: Any
    ) -> Stream:
        keys, values = view.kv_pool.get_kv_buffer(layer.layer_id)
        rows = chain.enter(stream)
        run, space = chain.kernels, chain.space
        run.attn_front(space, weight["norm"], weight["qkv"], rows)
        run.attn_decode(
            space,
            weight["q_norm"],
            weight["k_norm"],
            cos_sin,
            positions,
            axes,
            view.lengths,
            view.req_to_token,
            view.req_pool_indices,
            view.out_cache_loc,
            view.recurrent.slots,
            keys,
            values,
        )
        run.attn_merge(space, rows)
        run.attn_out(space, weight["out"], rows)
        return chain.leave(rows)

    return kernel


def bind_moe(layer: Any, chain: Chain) -> Kernel:
    """Slot ``moe`` of one layer: three launches."""
    weight = weights_of("moe", layer)

    def kernel(view: StepView, layer: Any, stream: Stream, forward_batch: Any) -> Stream:
        rows, slots = chain.enter(stream), view.recurrent.slots
        run, space = chain.kernels, chain.space
        run.moe_route(space, weight["norm"], weight["router"], weight["gate_up"], weight["shared_gate"], rows)
        run.moe_up(space, weight["w13"], slots)
        run.moe_down(space, weight["w2"], weight["shared_down"], slots)
        return chain.leave(rows)

    return kernel
