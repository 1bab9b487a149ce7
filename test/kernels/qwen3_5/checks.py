# SPDX-License-Identifier: Apache-2.0
"""Each fused step against the float64 reference, on any device: fresh inputs, poisoned outputs, padding.

``CHECKS`` maps a step to a function of (kernels, seed, rows, padding) that raises AssertionError with the
step, the shape and the error. The emulator's tests and the H200 script run the same functions.
"""

from __future__ import annotations

import torch

from sglang.srt.mega.models.qwen3_5.kernels import Kernels
from sglang.srt.mega.models.qwen3_5.workspace import Workspace

from . import reference as ref
from .layer import Attention, Batch, Gdn, Moe, Source

BF16_LIMIT = (
    4e-3  # one bf16 rounding is 1.7e-3 of the norm; a value on a rounding boundary may fall either way
)
FP32_LIMIT = 2e-6
LENGTHS = [1, 2, 17, 64, 65, 129, 300, 700]


class Bench:
    """A workspace whose every buffer is poisoned, and a residual stream with its sums."""

    def __init__(self, kernels: Kernels, seed: int, rows: int, padding: tuple[int, ...]) -> None:
        self.shape, self.kernels, self.rows = kernels.shape, kernels, rows
        self.source = Source(kernels.device, seed)
        self.space = Workspace.allocate(self.shape, kernels.device)
        for tensor in vars(self.space).values():
            tensor.fill_(float("nan"))
        lengths = (LENGTHS[seed % 8 :] + LENGTHS)[:rows]
        self.batch = Batch.random(self.shape, self.source, rows, lengths, padding)

    def fill(self, tensor: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        """Random values in the step's rows of a buffer."""
        values = self.source.normal(self.rows, *tensor.shape[1:], scale=scale, dtype=tensor.dtype)
        tensor[: self.rows] = values
        return values

    def stream(self, scale: float = 3.0) -> torch.Tensor:
        x = self.fill(self.space.x, scale)
        self.space.square_sums[: self.rows] = ref.square_sums(x).float()
        return x

    def expect(self, name: str, got: torch.Tensor, want: torch.Tensor, limit: float, rows: list[int]) -> None:
        got, want = got[rows].double(), want[rows].double()
        error = float((got - want).norm() / want.norm().clamp(min=1e-30))
        worst = float(((got - want).abs() / (want.abs() + want.abs().mean() + 1e-30)).max())
        assert error <= limit and worst <= 16 * limit, (
            f"{name}, {self.shape}, {self.rows} rows, live {self.batch.live}: relative error {error:.2e}, "
            f"worst element {worst:.2e}, limit {limit:.0e}"
        )

    def expect_stream(self, name: str, want: torch.Tensor, rows: list[int]) -> None:
        space = self.space
        self.expect(f"{name} stream", space.x, want, BF16_LIMIT, rows)
        self.expect(f"{name} sums", space.square_sums, ref.square_sums(space.x[: self.rows]), 1e-5, rows)
        assert space.x[self.rows :].isnan().all(), f"{name} wrote beyond its rows"


def unchanged(name: str, before: torch.Tensor, after: torch.Tensor, except_slots: list[int]) -> None:
    """Every slot but these holds the same bits."""
    keep = torch.ones(before.shape[0], dtype=torch.bool)
    keep[except_slots] = False
    keep = keep.to(before.device)
    assert torch.equal(before[keep], after[keep]), f"{name} changed a slot of no live row"


def stream_entry(kernels: Kernels, seed: int, rows: int, padding: tuple[int, ...]) -> None:
    for with_residual in (False, True):
        bench = Bench(kernels, seed, rows, padding)
        shape = (rows, bench.shape.hidden)
        hidden = bench.source.normal(*shape)
        residual = bench.source.normal(*shape, scale=4) if with_residual else None
        kernels.stream_entry(hidden, residual, bench.space)
        want = hidden if residual is None else hidden + residual
        assert torch.equal(bench.space.x[:rows], want), "stream_entry: the sum is exact"
        bench.expect_stream("stream_entry", want, list(range(rows)))


def gdn_front(kernels: Kernels, seed: int, rows: int, padding: tuple[int, ...]) -> None:
    bench = Bench(kernels, seed, rows, padding)
    shape, space, live = bench.shape, bench.space, bench.batch.live
    gdn, x = Gdn.random(shape, bench.source), bench.stream()
    before = gdn.conv_state.clone()
    kernels.gdn_front(
        space, gdn.norm, gdn.w_qkvz, gdn.w_ba, gdn.conv_weight, gdn.conv_state, bench.batch.state_index
    )
    normed = ref.gemma_norm(x, gdn.norm, shape.epsilon)
    y = ref.linear(normed, gdn.w_qkvz)
    slots = bench.batch.state_index.long()
    want = ref.convolution(y[:, : shape.qkv], gdn.conv_weight, before[slots.clamp(min=0)])
    bench.expect("gdn_front qkv", space.mixed_qkv, want, BF16_LIMIT, live)
    bench.expect("gdn_front z", space.z, y[:, shape.qkv :], BF16_LIMIT, list(range(rows)))
    bench.expect("gdn_front ba", space.ba, ref.linear(normed, gdn.w_ba), BF16_LIMIT, list(range(rows)))
    for m in live:
        slot = int(slots[m])
        assert torch.equal(gdn.conv_state[slot][:, :2], before[slot][:, 1:]), (
            "gdn_front: the window shifts exactly"
        )
    new = gdn.conv_state[slots.clamp(min=0)][..., 2]
    bench.expect("gdn_front window", new, y[:, : shape.qkv], BF16_LIMIT, live)
    unchanged("gdn_front", before, gdn.conv_state, [int(slots[m]) for m in live])


def gdn_step(kernels: Kernels, seed: int, rows: int, padding: tuple[int, ...]) -> None:
    bench = Bench(kernels, seed, rows, padding)
    shape, space, live = bench.shape, bench.space, bench.batch.live
    gdn = Gdn.random(shape, bench.source)
    mixed, ba = bench.fill(space.mixed_qkv), bench.fill(space.ba, 3.0)
    ba[:, 0] = 60.0  # beta saturates; the first head's a is past softplus' threshold
    ba[:, shape.value_heads] = 30.0
    space.ba[:rows] = ba
    before = gdn.state.clone()
    kernels.gdn_step(space, gdn.a_log, gdn.dt_bias, gdn.state, bench.batch.state_index)
    slots = bench.batch.state_index.long()
    out, state = ref.delta_rule(
        mixed, ba, gdn.a_log, gdn.dt_bias, before[slots.clamp(min=0)], shape.key_heads
    )
    bench.expect("gdn_step out", space.core, out.flatten(1), BF16_LIMIT, live)
    after = gdn.state[slots.clamp(min=0)]
    want = ref.bf16(state) if shape.state_bf16 else state
    bench.expect("gdn_step state", after, want, BF16_LIMIT if shape.state_bf16 else FP32_LIMIT, live)
    unchanged("gdn_step", before, gdn.state, [int(slots[m]) for m in live])
    for m in padding:
        assert not space.core[m].any(), "gdn_step: padding's output is zero"


def gdn_out(kernels: Kernels, seed: int, rows: int, padding: tuple[int, ...]) -> None:
    bench = Bench(kernels, seed, rows, padding)
    space, everything = bench.space, list(range(rows))
    gdn, x = Gdn.random(bench.shape, bench.source), bench.stream()
    core, z = bench.fill(space.core, 0.2), bench.fill(space.z, 2.0)
    kernels.gdn_out(space, gdn.out, gdn.gated_norm, rows)
    inner = ref.gated_norm(core, z, gdn.gated_norm, bench.shape.epsilon)
    bench.expect_stream("gdn_out", ref.add_to_stream(x, ref.linear(inner, gdn.out)), everything)


def attn_front(kernels: Kernels, seed: int, rows: int, padding: tuple[int, ...]) -> None:
    bench = Bench(kernels, seed, rows, padding)
    space = bench.space
    attention, x = Attention.random(bench.shape, bench.source, 1), bench.stream()
    kernels.attn_front(space, attention.norm, attention.qkv, rows)
    want = ref.linear(ref.gemma_norm(x, attention.norm, bench.shape.epsilon), attention.qkv)
    bench.expect("attn_front", space.qkv, want, BF16_LIMIT, list(range(rows)))


def attn_decode(kernels: Kernels, seed: int, rows: int, padding: tuple[int, ...]) -> None:
    """attn_decode and attn_merge."""
    bench = Bench(kernels, seed, rows, padding)
    shape, space, batch = bench.shape, bench.space, bench.batch
    layer, qkv = Attention.random(shape, bench.source), bench.fill(space.qkv)
    before = layer.k_cache.clone(), layer.v_cache.clone()
    axis_map = None
    positions = batch.positions
    if shape.mrope:
        axis_map = torch.arange(shape.rotary // 2, device=kernels.device) % 3
        positions = torch.stack((positions, positions // 2, positions // 3))
    kernels.attn_decode(
        space,
        layer.q_norm,
        layer.k_norm,
        batch.cos_sin,
        positions,
        axis_map,
        batch.seq_lens,
        batch.req_to_token,
        batch.req_index,
        batch.cache_slot,
        batch.state_index,
        layer.k_cache,
        layer.v_cache,
    )
    kernels.attn_merge(space, rows)
    cos_sin = batch.cos_sin[batch.positions]
    if axis_map is not None:
        lanes = torch.arange(shape.rotary // 2, device=kernels.device)
        place = positions[axis_map].T  # [rows, lanes]
        cos_sin = torch.cat(
            (batch.cos_sin[place, lanes], batch.cos_sin[place, lanes + shape.rotary // 2]), -1
        )
    q, gate, k, v = ref.prepare_qkv(
        qkv, layer.q_norm, layer.k_norm, cos_sin, shape.heads, shape.kv_heads, shape.rotary, shape.epsilon
    )
    want = torch.zeros(rows, shape.attention_inner, dtype=torch.float64, device=kernels.device)
    for m in batch.live:
        slot = int(batch.cache_slot[m])
        bench.expect("attn_decode key", layer.k_cache[slot][None], k[m][None], BF16_LIMIT, [0])
        assert torch.equal(layer.v_cache[slot].double(), v[m]), (
            "attn_decode: the value is stored as projected"
        )
        tokens = batch.req_to_token[m, : int(batch.seq_lens[m]) - 1].long()
        keys = torch.cat((before[0][tokens].double(), layer.k_cache[slot][None].double()))
        values = torch.cat((before[1][tokens].double(), v[m][None]))
        want[m] = ref.attention(q[m], gate[m], keys, values)
    bench.expect("attn_decode", space.attention, want, BF16_LIMIT, batch.live)
    written = [int(batch.cache_slot[m]) for m in batch.live]
    unchanged("attn_decode keys", before[0], layer.k_cache, written)
    unchanged("attn_decode values", before[1], layer.v_cache, written)


def attn_out(kernels: Kernels, seed: int, rows: int, padding: tuple[int, ...]) -> None:
    bench = Bench(kernels, seed, rows, padding)
    space = bench.space
    layer, x = Attention.random(bench.shape, bench.source, 1), bench.stream()
    attention = bench.fill(space.attention)
    kernels.attn_out(space, layer.out, rows)
    want = ref.add_to_stream(x, ref.linear(attention, layer.out))
    bench.expect_stream("attn_out", want, list(range(rows)))


def moe_route(kernels: Kernels, seed: int, rows: int, padding: tuple[int, ...]) -> None:
    bench = Bench(kernels, seed, rows, padding)
    shape, space, everything = bench.shape, bench.space, list(range(rows))
    moe, x = Moe.random(shape, bench.source), bench.stream()
    kernels.moe_route(space, moe.norm, moe.router, moe.gate_up, moe.shared_gate, rows)
    normed = ref.gemma_norm(x, moe.norm, shape.epsilon)
    bench.expect("moe_route normed", space.normed, normed, BF16_LIMIT, everything)
    logits = space.logits[:, : shape.experts]
    bench.expect("moe_route logits", logits, ref.linear(normed, moe.router), BF16_LIMIT, everything)
    act = ref.swiglu(ref.linear(normed, moe.gate_up))
    bench.expect("moe_route shared_act", space.shared_act, act, BF16_LIMIT, everything)
    scale = torch.sigmoid(normed @ moe.shared_gate.double().T)[:, 0]
    bench.expect("moe_route shared_scale", space.shared_scale, scale, 1e-3, everything)


def route(bench: Bench) -> tuple[torch.Tensor, torch.Tensor]:
    """Random logits with ties and shared experts among rows, and the picks they imply."""
    shape, rows = bench.shape, bench.rows
    logits = bench.fill(bench.space.logits)[:, : shape.experts].clone()
    logits[:, 1] = logits[:, shape.experts - 1]  # a tie, often within the picks
    logits[:, shape.experts // 2] = 5.0  # every row picks it
    bench.space.logits[:rows, : shape.experts] = logits
    return ref.top_k(logits, shape.top_k)


def moe_up(kernels: Kernels, seed: int, rows: int, padding: tuple[int, ...]) -> None:
    bench = Bench(kernels, seed, rows, padding)
    space, batch = bench.space, bench.batch
    moe, normed = Moe.random(bench.shape, bench.source), bench.fill(space.normed)
    ids, _ = route(bench)
    kernels.moe_up(space, moe.w13, batch.state_index)
    for m in batch.live:
        want = torch.stack([ref.swiglu(ref.linear(normed[m], moe.w13[e])) for e in ids[m]])
        bench.expect(f"moe_up row {m}", space.act[m], want, BF16_LIMIT, list(range(bench.shape.top_k)))
    for m in padding:
        assert space.act[m].isnan().all(), "moe_up: padding picks no expert"


def moe_down(kernels: Kernels, seed: int, rows: int, padding: tuple[int, ...]) -> None:
    bench = Bench(kernels, seed, rows, padding)
    space, batch = bench.space, bench.batch
    moe, x = Moe.random(bench.shape, bench.source), bench.stream()
    act, shared_act = bench.fill(space.act), bench.fill(space.shared_act)
    scale = bench.fill(space.shared_scale)
    ids, weights = route(bench)
    kernels.moe_down(space, moe.w2, moe.shared_down, batch.state_index)
    want = torch.zeros_like(x, dtype=torch.float64)
    for m in batch.live:
        picks = enumerate(zip(ids[m], weights[m], strict=True))
        routed = sum(w * (moe.w2[e].double() @ act[m, j].double()) for j, (e, w) in picks)
        shared = ref.linear(shared_act[m], moe.shared_down)
        want[m] = ref.add_to_stream(x[m], ref.bf16(scale[m].double() * shared + ref.bf16(routed)))
    bench.expect_stream("moe_down", want, batch.live)


CHECKS = {
    check.__name__: check
    for check in (
        stream_entry,
        gdn_front,
        gdn_step,
        gdn_out,
        attn_front,
        attn_decode,
        attn_out,
        moe_route,
        moe_up,
        moe_down,
    )
}
