# SPDX-License-Identifier: Apache-2.0
"""Marlin NVFP4 and FP8 against dequantised products on a GPU (not a pytest file: it needs the CUDA kernels).

    PYTHONPATH=<patched tree> python gpu_parity.py [--out results.jsonl]

One JSON line a case: relative Frobenius error against the checkpoint's exact product in float64, and, for
Marlin, against the product of the matrix that the twin reads back from what is stored. Exit 1 if a case that
must hold does not.
"""

from __future__ import annotations

import argparse
import json
import sys
import types
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
import marlin_twin as twin

from sglang.srt.layers.moe import marlin_activation
from sglang.srt.layers.moe.moe_runner.base import MoeRunnerConfig
from sglang.srt.layers.moe.moe_runner.marlin import MarlinMoeQuantInfo, fused_experts_none_to_marlin
from sglang.srt.layers.moe.token_dispatcher.standard import StandardDispatchOutput
from sglang.srt.layers.moe.topk import StandardTopKOutput
from sglang.srt.layers.quantization import (
    fp8_post_quant,
    gdn_post_quant,
    marlin_scale_range,
    nvfp4_numerics,
    nvfp4_self_test,
)
from sglang.srt.layers.quantization import marlin_utils_fp4 as marlin

BF16 = torch.bfloat16
DEVICE = "cuda"
ROWS = (1, 7, 56)
NORMAL = list(range(0x08, 0x7F))
results: list[dict] = []


def record(case: str, limit: float | None = None, at_least: float | None = None, **values) -> None:
    error = values["error"]
    ok = (limit is None or error <= limit) and (at_least is None or error >= at_least)
    results.append({"case": case, "ok": ok, "limit": limit, "at_least": at_least, **values})
    print(json.dumps(results[-1]), flush=True)


def relative(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.double() - want.double()).norm() / want.double().norm().clamp(min=1e-300))


def checkpoint(rows, columns, seed=0, codes=NORMAL, global_scale=2.0**-12):
    generator = torch.Generator(device=DEVICE).manual_seed(seed)
    packed = torch.randint(
        0, 256, (rows, columns // 2), generator=generator, device=DEVICE, dtype=torch.uint8
    )
    table = torch.tensor(codes, dtype=torch.uint8, device=DEVICE)
    pick = torch.randint(0, len(codes), (rows, columns // 16), generator=generator, device=DEVICE)
    return packed, table[pick].view(torch.float8_e4m3fn), torch.tensor(global_scale, device=DEVICE)


def dense_layer(packed, block_scale, global_scale):
    layer = torch.nn.Module()
    layer.quant_config = types.SimpleNamespace(group_size=16)
    layer.output_size_per_partition, layer.input_size_per_partition = packed.shape[0], packed.shape[1] * 2
    layer.params_dtype = BF16
    for name, value in (("", packed), ("_scale", block_scale), ("_global_scale", global_scale)):
        setattr(layer, f"weight{name}", torch.nn.Parameter(value.clone(), requires_grad=False))
    return layer


def run(layer, x):
    return gdn_post_quant.MarlinPostQuantLinearMethod().apply(layer, x)


def rows_of(m, k, seed=1, scale=1.0):
    generator = torch.Generator(device=DEVICE).manual_seed(seed)
    return (torch.randn(m, k, generator=generator, device=DEVICE) * scale).to(BF16)


def dense() -> None:
    for n, k in ((2048, 4096), (20480, 3072), (928, 256), (192, 80)):
        parts = checkpoint(n, k)
        layer = dense_layer(*parts)
        marlin.prepare_nvfp4_layer_for_marlin(layer)
        exact = nvfp4_numerics.dequantize(*parts)
        read_back = twin.dequantize(layer.weight, layer.weight_scale, layer.weight_global_scale, BF16)[:n, :k]
        record(f"dense {n}x{k} layout", 0.0, error=relative(read_back, exact))
        for m in ROWS:
            x = rows_of(m, k)
            record(f"dense {n}x{k} M={m}", 0.01, error=relative(run(layer, x), x.double() @ exact.double().T))
        layer.weight_scale.data = twin.interleave(layer.weight_scale.data)
        x = rows_of(7, k)
        got = run(layer, x)
        scrambled = twin.dequantize(layer.weight, layer.weight_scale, layer.weight_global_scale, BF16)[:n, :k]
        record(
            f"dense {n}x{k} with seed 004's interleave", None, 0.1,
            error=relative(got, x.double() @ exact.double().T),
            error_against_scrambled=relative(got, x.double() @ scrambled.double().T),
        )  # fmt: skip


def scale_ranges() -> None:
    n, k = 256, 512
    stock = marlin_scale_range.normalize
    cases = {
        "every E4M3 scale": list(range(0x7F)),
        "448 alone": [0x7E],
        "2^-9 alone": [0x01],
        "below 2^-6": list(range(1, 8)),
        "zero and 448": [0x00, 0x7E],
    }
    for name, codes in cases.items():
        parts = checkpoint(n, k, codes=codes)
        want = nvfp4_numerics.dequantize(*parts).double()
        x = rows_of(7, k)
        for label, normalize in (("upstream", lambda b, g: (b, g)), ("normalized", stock)):
            marlin_scale_range.normalize = normalize
            layer = dense_layer(*parts)
            marlin.prepare_nvfp4_layer_for_marlin(layer)
            marlin_scale_range.normalize = stock
            got = run(layer, x)
            limit = 0.01 if label == "normalized" else None
            finite = bool(got.isfinite().all())
            record(f"scales: {name}, {label}", limit, error=relative(got, x.double() @ want.T), finite=finite)
    zero = checkpoint(n, k, codes=[0x00])
    layer = dense_layer(*zero)
    marlin.prepare_nvfp4_layer_for_marlin(layer)
    got = run(layer, rows_of(7, k))
    record("scales: all zero", 0.0, error=float(got.abs().nan_to_num(1e9).max()))
    for global_scale in (0.0123, 3.3e-5):
        parts = checkpoint(n, k, global_scale=global_scale)
        layer = dense_layer(*parts)
        marlin.prepare_nvfp4_layer_for_marlin(layer)
        x = rows_of(56, k)
        record(
            f"global scale {global_scale} (rounded to BF16)", 0.01,
            error=relative(run(layer, x), x.double() @ nvfp4_numerics.dequantize(*parts).double().T),
        )  # fmt: skip
    parts = checkpoint(n, k)
    layer = dense_layer(*parts)
    marlin.prepare_nvfp4_layer_for_marlin(layer)
    x = rows_of(7, k, scale=3e4)
    record("activations near 1e5", 0.01, error=relative(run(layer, x), x.double() @ nvfp4_numerics.dequantize(*parts).double().T))  # fmt: skip


def experts(count, hidden, intermediate, gated, codes=NORMAL, global_scale=2.0**-13):
    layer = torch.nn.Module()
    layer.quant_config = types.SimpleNamespace(group_size=16)
    layer.moe_runner_config = types.SimpleNamespace(is_gated=gated)
    layer.intermediate_size_per_partition, layer.params_dtype = intermediate, BF16
    exact = {}
    for name, rows, columns in (("w13", intermediate * (1 + gated), hidden), ("w2", hidden, intermediate)):
        parts = [checkpoint(rows, columns, 10 + e, codes, global_scale) for e in range(count)]
        exact[name] = [nvfp4_numerics.dequantize(*p) for p in parts]
        scale = torch.stack([p[1].view(torch.uint8) for p in parts]).view(torch.float8_e4m3fn)
        for suffix, value in (
            ("weight", torch.stack([p[0] for p in parts])),
            ("weight_scale", scale),
            ("weight_scale_2", torch.stack([p[2] for p in parts])),
        ):
            setattr(layer, f"{name}_{suffix}", torch.nn.Parameter(value, requires_grad=False))
    marlin.prepare_moe_nvfp4_layer_for_marlin(layer)
    return layer, exact


def run_moe(layer, config, x, weights, ids):
    info = MarlinMoeQuantInfo(
        w13_qweight=layer.w13_weight, w2_qweight=layer.w2_weight, w13_scales=layer.w13_weight_scale,
        w2_scales=layer.w2_weight_scale, w13_g_idx_sort_indices=None, w2_g_idx_sort_indices=None, weight_bits=4,
        w13_global_scale=layer.w13_weight_scale_2, w2_global_scale=layer.w2_weight_scale_2,
    )  # fmt: skip
    logits = torch.zeros(x.shape[0], layer.w13_weight.shape[0], device=DEVICE)
    dispatch = StandardDispatchOutput(x, None, StandardTopKOutput(weights, ids, logits))
    return fused_experts_none_to_marlin(dispatch, info, config).hidden_states


def moe_want(exact, config, x, weights, ids):
    out = torch.zeros_like(x, dtype=torch.float64)
    for token in range(x.shape[0]):
        for k in range(ids.shape[1]):
            e = int(ids[token, k])
            gate_up = (x[token].double() @ exact["w13"][e].double().T).float()[None]
            hidden = marlin_activation.reference(config, gate_up)[0].double()
            out[token] += weights[token, k].double() * (hidden @ exact["w2"][e].double().T)
    return out * (config.routed_scaling_factor or 1.0)


def moe() -> None:
    cases = [
        ("silu", {}, 1.0),
        ("silu routed_scaling_factor 2.5", {"routed_scaling_factor": 2.5}, 1.0),
        ("silu swiglu_limit 10", {"swiglu_limit": 10.0}, 40.0),
        ("silu gemm1_clamp_limit 7", {"gemm1_clamp_limit": 7.0}, 40.0),
        (
            "swiglu_oai alpha 1.702 beta 0.5 limit 7",
            {"gemm1_alpha": 1.702, "gemm1_beta": 0.5, "gemm1_clamp_limit": 7.0, "gate_up_interleaved": False},
            10.0,
        ),  # fmt: skip
        ("gelu", {"activation": "gelu"}, 1.0),
        ("gelu_tanh", {"activation": "gelu_tanh"}, 1.0),
        ("situ", {"activation": "situ", "gemm1_alpha": 4.0, "gemm1_clamp_limit": 25.0}, 10.0),
        ("relu2 plain", {"activation": "relu2", "is_gated": False}, 1.0),
        ("gelu plain", {"activation": "gelu", "is_gated": False}, 1.0),
    ]
    layers = {gated: experts(16, 512, 256, gated) for gated in (True, False)}
    for name, arguments, scale in cases:
        config = MoeRunnerConfig(**arguments)
        layer, exact = layers[config.is_gated]
        for m in ROWS:
            x = rows_of(m, 512, scale=scale)
            generator = torch.Generator(device=DEVICE).manual_seed(m)
            logits = torch.randn(m, 16, generator=generator, device=DEVICE)
            weights, ids = torch.softmax(logits, -1).topk(4)
            ids = ids.to(torch.int32)
            want = moe_want(exact, config, x, weights, ids)
            got = run_moe(layer, config, x, weights, ids)
            record(f"moe {name} M={m}", 0.02, error=relative(got, want))
    limited = MoeRunnerConfig(swiglu_limit=10.0)
    layer, exact = layers[True]
    x = rows_of(7, 512, scale=40.0)
    weights = torch.full((7, 4), 0.25, device=DEVICE)
    ids = torch.arange(4, dtype=torch.int32, device=DEVICE).repeat(7, 1)
    unclamped = moe_want(exact, MoeRunnerConfig(), x, weights, ids)
    record("moe: the clamp matters for these inputs", None, 0.5, error=relative(run_moe(layer, limited, x, weights, ids), unclamped))  # fmt: skip
    stock = marlin_scale_range.normalize
    for label, normalize in (("upstream", lambda b, g: (b, g)), ("normalized", stock)):
        marlin_scale_range.normalize = normalize
        layer, exact = experts(8, 512, 256, True, codes=list(range(1, 8)), global_scale=2.0**-5)
        marlin_scale_range.normalize = stock
        want = moe_want(exact, MoeRunnerConfig(), x, weights, ids)
        limit = 0.02 if label == "normalized" else None
        record(f"moe scales below 2^-6, {label}", limit, error=relative(run_moe(layer, MoeRunnerConfig(), x, weights, ids), want))  # fmt: skip


def fp8() -> None:
    for n, k in ((20480, 3072), (3072, 8192), (248320, 2048)):
        weight = rows_of(n, k, seed=3, scale=0.02)
        codes, scales, weight_error = fp8_post_quant.quantize_channels(weight)
        for m in ROWS:
            x = rows_of(m, k)
            got = fp8_post_quant.linear(x, codes, scales)
            q, s = fp8_post_quant.quantize_tokens(x)
            fake = (q.float() * s).double() @ (codes.float() * scales).double().T
            record(
                f"fp8 {n}x{k} M={m}", 0.06, error=relative(got, x.double() @ weight.double().T),
                error_against_quantized_operands=relative(got, fake), weight_error=weight_error,
            )  # fmt: skip
        del weight, codes
    weight = rows_of(256, 512, scale=0.02)
    weight[3] = 0
    codes, scales, _ = fp8_post_quant.quantize_channels(weight)
    x = rows_of(4, 512)
    x[1] = 0
    x[2] *= 1e5
    x[3] *= 1e-5
    got = fp8_post_quant.linear(x, codes, scales)
    want = x.double() @ weight.double().T
    record("fp8 a zero token gives zero", 0.0, error=float(got[1].abs().nan_to_num(1e9).max()))
    record("fp8 a zero channel gives zero", 0.0, error=float(got[:, 3].abs().nan_to_num(1e9).max()))
    for row in (0, 2, 3):
        record(f"fp8 token scaled by {(1, 0, 1e5, 1e-5)[row]}", 0.06, error=relative(got[row], want[row]))


def post_quant() -> None:
    for n, k in ((12288, 2048), (3072, 8192)):
        layer = torch.nn.Module()
        weight = rows_of(n, k, seed=5, scale=0.02)
        layer.weight = torch.nn.Parameter(weight.clone(), requires_grad=False)
        stored, weight_error = gdn_post_quant.MarlinNvfp4Quantizer().quantize(layer)
        x = rows_of(7, k)
        got = layer.quant_method.apply(layer, x)
        record(
            f"nvfp4 post-quant {n}x{k}", 0.12, error=relative(got, x.double() @ weight.double().T),
            weight_error=weight_error, bytes_before=weight.numel() * 2, bytes_after=stored,
        )  # fmt: skip


class _Method:
    """A quantization method as the loader meets it: prepare, then apply."""

    def __init__(self, damage=None):
        self.damage = damage

    def process_weights_after_loading(self, layer):
        layer.weight_global_scale = torch.nn.Parameter(layer.weight_scale_2.data.clone(), requires_grad=False)
        del layer.weight_scale_2
        marlin.prepare_nvfp4_layer_for_marlin(layer)
        if self.damage is not None:
            self.damage(layer)

    def apply(self, layer, x):
        return run(layer, x)


def self_test() -> None:
    def load(damage=None):
        nvfp4_self_test.reset()
        layer = dense_layer(*checkpoint(1024, 512))
        layer.weight_scale_2 = layer.weight_global_scale
        del layer.weight_global_scale
        method = _Method(damage)
        with nvfp4_self_test.checked(layer, method):
            method.process_weights_after_loading(layer)

    load()
    record("self-test passes a right layer", 0.0, error=0.0)

    def scramble(layer):
        layer.weight_scale.data = twin.interleave(layer.weight_scale.data)

    def zero(layer):
        layer.weight_global_scale.data.zero_()

    def nan(layer):
        layer.weight_global_scale.data.fill_(float("nan"))

    for name, damage in (
        ("interleaved scales", scramble),
        ("an all-zero product", zero),
        ("a NaN product", nan),
    ):
        try:
            load(damage)
        except nvfp4_self_test.Nvfp4SelfTestError as error:
            record(f"self-test refuses {name}", 0.0, error=0.0, message=str(error)[:160])
        else:
            record(f"self-test refuses {name}", 0.0, error=1.0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    args = parser.parse_args()
    parts = {f.__name__: f for f in (dense, scale_ranges, moe, fp8, post_quant, self_test)}
    for name, part in parts.items():
        if args.only and name not in args.only:
            continue
        try:
            part()
        except Exception as error:  # one part must not take the others' results with it
            record(f"{name} raised {type(error).__name__}", 0.0, error=1.0, message=str(error)[:500])
        if args.out:
            args.out.write_text("".join(json.dumps(r) + "\n" for r in results))
    failed = [r for r in results if not r["ok"]]
    print(f"{len(results) - len(failed)} of {len(results)} hold")
    for r in failed:
        print("FAILED", json.dumps(r))
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
