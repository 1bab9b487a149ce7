# SPDX-License-Identifier: Apache-2.0
"""Lab, in the built environment on a GPU: the fused steps of glm_deepseek.py beside the ops that SGLang runs.

``python test/bench/lab/against_stock.py --parts mla mhc --out results.jsonl``. Sparse attention against
FlashMLA as SGLang's DSA backend calls it, heads padded to 64, on pages that SGLang's own quantiser wrote; the
seam against SGLang's post, combine, norm and mix. Both arms are graphs over the same inputs, larger than the
L2.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import torch

import sglang.srt.mega  # SGLang itself, before lab would put the checkout in its place

sys.path[:0] = [str(Path(__file__).parent)]

import glm_deepseek as ours  # noqa: E402
import lab  # noqa: E402
from deepseek_v4.checks import Inputs as SeamInputs  # noqa: E402
from glm_moe_dsa import reference  # noqa: E402
from glm_moe_dsa.checks import SCALE  # noqa: E402

from sglang.srt.mega.models.deepseek_v4 import tactics as mhc  # noqa: E402
from sglang.srt.mega.models.deepseek_v4.kernels import HyperConnection, Mix  # noqa: E402
from sglang.srt.mega.models.glm_moe_dsa import tactics as mla  # noqa: E402
from sglang.srt.mega.models.glm_moe_dsa.kernels import SparseMla  # noqa: E402

PADDED_HEADS, PAGE = 64, 64


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.double() - want.double()).norm() / want.double().norm())


class FlashMla:
    """Decode as ``DeepseekSparseAttnBackend._forward_flashmla_kv`` runs it, metadata made once a step."""

    def __init__(self, shape: mla.Shape, rows: int) -> None:
        from sglang.kernels.ops.attention import flash_mla_interface as interface

        self.shape, self.run = shape, interface.flash_mla_with_kvcache
        self.lengths = torch.full((rows,), shape.top_k, dtype=torch.int32, device="cuda")
        self.schedule, self.splits = interface.get_mla_metadata(
            cache_seqlens=self.lengths,
            num_q_tokens_per_head_k=PADDED_HEADS,
            num_heads_k=1,
            num_heads_q=PADDED_HEADS,
            is_fp8_kvcache=True,
            topk=shape.top_k,
        )
        self.no_table = torch.empty((rows, 0), dtype=torch.int32, device="cuda")

    def pad(self, query: torch.Tensor, rotated: torch.Tensor) -> torch.Tensor:
        """Latent and rotated queries joined, heads padded, as two of stock's launches."""
        joined = torch.cat((query, rotated), -1)
        padded = joined.new_zeros(joined.shape[0], 1, PADDED_HEADS, joined.shape[-1])
        padded[:, 0, : self.shape.heads] = joined
        return padded

    def __call__(self, padded: torch.Tensor, cache: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        out, _ = self.run(
            q=padded,
            k_cache=cache.view(torch.float8_e4m3fn).view(-1, PAGE, 1, self.shape.row_bytes),
            block_table=self.no_table,
            cache_seqlens=self.lengths,
            head_dim_v=mla.LATENT,
            tile_scheduler_metadata=self.schedule,
            num_splits=self.splits,
            softmax_scale=SCALE,
            is_fp8_kvcache=True,
            indices=chosen[:, None],
            kv_format="V32",
        )
        return out[:, 0, : self.shape.heads]


def check_mla(rows: int) -> None:
    """Both against float64 on pages that SGLang's quantiser wrote."""
    from sglang.kernels.ops.quantization.dsa_quant_k_cache import quantize_k_cache

    shape, tokens = mla.GLM5_TP8, 8192
    source = torch.randn(tokens // PAGE, PAGE, 1, 576, device="cuda").bfloat16()
    source[..., :3] *= 64
    cache = quantize_k_cache(source).view(torch.uint8).view(tokens, -1)
    query = torch.randn(shape.heads, rows, mla.LATENT, device="cuda").bfloat16().transpose(0, 1)
    rotated = torch.randn(rows, shape.heads, mla.ROPE, device="cuda").bfloat16()
    chosen = torch.rand(rows, tokens, device="cuda").argsort(-1)[:, : shape.top_k].to(torch.int32)
    chosen[:, shape.top_k - 300 :] = -1
    chosen = chosen.contiguous()
    out = torch.empty(rows, shape.heads, mla.LATENT, dtype=torch.bfloat16, device="cuda")
    SparseMla(shape, "cuda")(query, rotated, cache, chosen, SCALE, out)
    flash = FlashMla(shape, rows)
    stock = flash(flash.pad(query, rotated), cache, chosen)
    exact = reference.sparse_mla(query, rotated, cache, chosen, SCALE)
    print(
        f"sparse MLA {rows} rows: from float64 ours {error(out, exact):.2e}, "
        f"FlashMLA {error(stock, exact):.2e}; apart {error(out, stock):.2e}",
        flush=True,
    )


def measure_mla(rows_out: lab.Rows, rows: int, copy: float) -> None:
    shape = mla.GLM5_TP8
    model, kernel, flash = ours.Attention(shape, rows), SparseMla(shape, "cuda"), FlashMla(shape, rows)
    padded = flash.pad(model.query, model.rotated)

    def stock(with_padding: bool) -> None:
        for cache in model.caches:
            flash(flash.pad(model.query, model.rotated) if with_padding else padded, cache, model.chosen)

    arms: dict[str, Callable[[], None]] = {
        "ours": lambda: model.step(kernel, None),
        "FlashMLA alone": lambda: stock(False),
        "FlashMLA with its padding": lambda: stock(True),
    }
    compare(rows_out, "mla", rows, arms, ours.LAYERS, model.bytes, copy)


def compare(
    rows_out: lab.Rows,
    part: str,
    rows: int,
    arms: dict[str, Callable[[], None]],
    parts: int,
    size: int,
    copy: float,
) -> None:
    graphs = {name: lab.capture(step) for name, step in arms.items()}
    times: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(5):  # in turn, so that a drift meets every arm
        for name, graph in graphs.items():
            times[name] += lab.replay_times(graph, 8, 2)
    for name, taken in times.items():
        summary = {key: value / parts for key, value in lab.summary(taken).items()}
        rate = size / summary["median_us"] / 1e6
        print(
            f"{part} {rows:2} rows {name:28} {summary['median_us']:6.2f} us "
            f"[{summary['ci_low_us']:.2f}, {summary['ci_high_us']:.2f}] {rate / copy:4.0%} of copy",
            flush=True,
        )
        rows_out.add(part=f"{part} against stock", arm=name, rows=rows, **summary)


class StockSeam:
    """SGLang's seam at this width on sm_90: post, combine and norm, mix."""

    def __init__(self, shape: mhc.Shape, rows: int) -> None:
        from sglang.kernels.ops.layernorm import mhc as ops
        from sglang.kernels.ops.layernorm.hc_combine_norm import hc_combine_norm
        from sglang.kernels.ops.layernorm.mhc_post_split_h import mhc_post_split_h

        self.shape, self.rows, self.ops = shape, rows, ops
        self.post, self.combine_norm = mhc_post_split_h, hc_combine_norm

    def mix(self, flat: torch.Tensor, fn: torch.Tensor, scale: torch.Tensor, base: torch.Tensor) -> Mix:
        """As ``_mix_stats_impl`` chooses: one row and 32 to 64 rows fuse the Sinkhorn, others do not."""
        sizes = (self.shape.iterations, self.shape.rms_epsilon, self.shape.epsilon)
        if self.rows == 1:
            return Mix(*self.ops.hc_mix_stats_sinkhorn(flat, fn, scale, base, 4, *sizes))
        if self.rows >= 32:
            parts = self.ops.split_bf16_hc_weight(fn) if not isinstance(fn, tuple) else fn
            return Mix(*self.ops.hc_mix_stats_sinkhorn_bf16x3(flat, parts, scale, base, *sizes))
        mixes = self.ops.hc_mix_stats(flat, fn, self.shape.rms_epsilon).unsqueeze(1)
        split = self.ops.hc_split_sinkhorn(mixes, scale, base, 4, self.shape.iterations, self.shape.epsilon)
        return Mix(*(value.squeeze(1) for value in split))

    def __call__(self, x, residual, mix: Mix, fn, scale, base, weight):  # type: ignore[no-untyped-def]
        streams = self.post(x, residual, mix.post, mix.comb)
        flat = streams.flatten(1)
        normed = self.combine_norm(flat, mix.pre, weight, self.shape.norm_epsilon)
        return streams, normed, self.mix(flat, fn, scale, base)


def check_mhc(rows: int) -> None:
    shape = mhc.V41_FLASH
    seam, stock = HyperConnection(shape, "cuda"), StockSeam(shape, rows)
    i = SeamInputs(seam, rows, rows)
    i.run(seam)
    streams, normed, mix = stock(i.x, i.residual, i.mix, i.fn, i.mix_scale, i.base, i.norm_weight)
    print(
        f"mHC {rows} rows: streams bit for bit {torch.equal(streams, i.updated[:rows])}, "
        f"{int((normed != i.normed[:rows]).sum())} of {normed.numel()} normed values differ; apart: "
        f"pre {error(i.next_mix.pre[:rows], mix.pre):.1e}, "
        f"post {error(i.next_mix.post[:rows], mix.post):.1e}, "
        f"comb {error(i.next_mix.comb[:rows], mix.comb):.1e}",
        flush=True,
    )


def measure_mhc(rows_out: lab.Rows, rows: int, copy: float) -> None:
    shape = mhc.V41_FLASH
    model, kernel, stock = ours.Seams(shape, rows), HyperConnection(shape, "cuda"), StockSeam(shape, rows)
    parts = [stock.ops.split_bf16_hc_weight(fn) for fn in model.fn] if rows >= 32 else model.fn

    def chain() -> None:
        streams, mix = model.streams[0], model.mixes[0]
        for fn in parts:
            streams, _, mix = stock(model.x, streams, mix, fn, model.mix_scale, model.base, model.weight)

    arms = {"ours": lambda: model.step(kernel), "SGLang": chain}
    compare(rows_out, "mHC", rows, arms, model.count, model.bytes(shape.hidden), copy)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", default=["mla", "mhc"])
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    print(f"{sglang.srt.mega.__file__}", flush=True)
    rows_out, copy = lab.Rows(chosen.out), lab.copy_tb_s()
    print(f"copy {copy:.2f} TB/s", flush=True)
    if "mla" in chosen.parts:
        for rows in (1, 4, 16):
            check_mla(rows)
        for rows in (1, 2, 4, 8, 12, 16):
            measure_mla(rows_out, rows, copy)
    if "mhc" in chosen.parts:
        for rows in (1, 6, 48):
            check_mhc(rows)
            measure_mhc(rows_out, rows, copy)


if __name__ == "__main__":
    main()
