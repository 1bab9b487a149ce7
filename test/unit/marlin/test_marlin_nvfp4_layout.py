# SPDX-License-Identifier: Apache-2.0
"""Does Marlin's NVFP4 layout of SGLang hold the checkpoint's weights? Prepared layers, read back.

SGLang's own preparation runs on a CPU (only the repack kernel is a twin); what it stores is inverted by the
documented layout and must be the checkpoint's dequantised weight bit for bit, up to the global scale's BF16.
``gpu_parity.py`` holds the same against the CUDA kernels.
"""

import types

import pytest
import torch

from sglang.srt.layers.quantization import marlin_scale_range, nvfp4_numerics
from sglang.srt.layers.quantization import marlin_utils_fp4 as marlin

pytestmark = pytest.mark.kernels

BF16, FP16 = torch.bfloat16, torch.float16


def checkpoint(rows, columns, seed=0, scale_codes=None, global_scale=2.0**-12):
    """Random codes of every value, and block scales: random E4M3 codes from ``scale_codes`` (default:
    all).
    """
    generator = torch.Generator().manual_seed(seed)
    packed = torch.randint(0, 256, (rows, columns // 2), generator=generator, dtype=torch.uint8)
    codes = torch.arange(0x7F, dtype=torch.uint8) if scale_codes is None else torch.as_tensor(scale_codes)
    pick = torch.randint(0, len(codes), (rows, columns // 16), generator=generator)
    return packed, codes.to(torch.uint8)[pick].view(torch.float8_e4m3fn), torch.tensor(global_scale)


def dense_layer(packed, block_scale, global_scale, dtype=BF16):
    layer = torch.nn.Module()
    layer.quant_config = types.SimpleNamespace(group_size=16)
    layer.output_size_per_partition, layer.input_size_per_partition = packed.shape[0], packed.shape[1] * 2
    layer.params_dtype = dtype
    for name, value in (("", packed), ("_scale", block_scale), ("_global_scale", global_scale)):
        setattr(layer, f"weight{name}", torch.nn.Parameter(value, requires_grad=False))
    return layer


def stored(twin, layer, dtype=BF16):
    rows, columns = layer.output_size_per_partition, layer.input_size_per_partition
    return twin.dequantize(layer.weight, layer.weight_scale, layer.weight_global_scale, dtype)[
        :rows, :columns
    ]


# Marlin takes N % 64 with K % 128, or N % 128 with K % 64; 928 and 80 are padded (a TP shard of 3712).
SHAPES = [(64, 128), (128, 64), (256, 512), (928, 256), (192, 80)]


@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_a_prepared_dense_layer_holds_its_checkpoint(twin, rows, columns, dtype):
    # the largest scale is 448: no shift, and every scale from 2**-6 up is in BF16's range
    normal = [c for c in range(0x7F) if c >= 0x08] if dtype == BF16 else None
    packed, block_scale, global_scale = checkpoint(rows, columns, scale_codes=normal)
    layer = dense_layer(packed, block_scale, global_scale, dtype)
    marlin.prepare_nvfp4_layer_for_marlin(layer)
    want = nvfp4_numerics.dequantize(packed, block_scale, global_scale)
    assert torch.equal(stored(twin, layer, dtype), want)


def test_the_interleave_of_seed_004_would_scramble_the_scales(twin):
    packed, block_scale, global_scale = checkpoint(256, 512, scale_codes=range(0x08, 0x7F))
    layer = dense_layer(packed, block_scale, global_scale)
    marlin.prepare_nvfp4_layer_for_marlin(layer)
    want = nvfp4_numerics.dequantize(packed, block_scale, global_scale)
    layer.weight_scale.data = twin.interleave(layer.weight_scale.data)
    got = stored(twin, layer)
    assert float((got - want).norm() / want.norm()) > 0.5


def test_every_scale_code_survives_in_fp16_and_the_small_ones_do_not_in_bf16(twin):
    """The reason for ``marlin_scale_range``: what the BF16 kernels read of a scale below 2**-6 is nothing."""
    codes = torch.arange(0x7F, dtype=torch.uint8).repeat(4, 1)[:, :64].T.contiguous()
    row = torch.arange(64, dtype=torch.uint8).view(torch.float8_e4m3fn).repeat(16, 1)
    del codes
    permuted = marlin.marlin_permute_scales(row.to(FP16), size_k=256, size_n=64, group_size=16)
    bytes_ = marlin.nvfp4_marlin_process_scales(permuted)
    want = row.float().T
    assert torch.equal(twin.scales(bytes_, FP16), want)
    got = twin.scales(bytes_, BF16)
    kept = want >= marlin_scale_range.BF16_SMALLEST
    assert torch.equal(got[kept], want[kept])
    assert float(got[~kept].max()) < 1e-30


@pytest.mark.parametrize("codes", [[0x01], [0x01, 0x07], [0x02, 0x05, 0x00], list(range(0x20))])
def test_small_scales_survive_the_whole_preparation_in_bf16(twin, codes):
    packed, block_scale, global_scale = checkpoint(128, 256, scale_codes=codes)
    layer = dense_layer(packed, block_scale, global_scale)
    marlin.prepare_nvfp4_layer_for_marlin(layer)
    want = nvfp4_numerics.dequantize(packed, block_scale, global_scale)
    assert torch.equal(stored(twin, layer), want)


def test_zero_scales_and_a_zero_weight_stay_zero(twin):
    packed, block_scale, global_scale = checkpoint(64, 128, scale_codes=[0x00])
    layer = dense_layer(packed, block_scale, global_scale)
    marlin.prepare_nvfp4_layer_for_marlin(layer)
    assert not stored(twin, layer).any()
    assert layer.weight_global_scale.isfinite().all()


def test_normalizing_changes_no_product_and_reaches_the_top_of_e4m3():
    block_scale = torch.tensor([[0x01, 0x06, 0x00]], dtype=torch.uint8).view(torch.float8_e4m3fn)
    grown, back = marlin_scale_range.normalize(block_scale, torch.tensor(3.0))
    assert torch.equal(grown.float() * back, block_scale.float() * 3.0)
    assert 224 < grown.float().max() <= 448
    full = torch.tensor([[0x7E, 0x01]], dtype=torch.uint8).view(torch.float8_e4m3fn)
    same, scale = marlin_scale_range.normalize(full, torch.tensor(3.0))
    assert same is full and float(scale) == 3.0


def test_each_expert_is_normalized_by_itself():
    codes = torch.tensor([[[0x7E, 0x08]], [[0x01, 0x03]], [[0x00, 0x00]]], dtype=torch.uint8)
    block_scale, global_scale = codes.view(torch.float8_e4m3fn), torch.tensor([[1.0], [2.0], [3.0]])
    grown, back = marlin_scale_range.normalize(block_scale, global_scale)
    assert back.shape == (3, 1)
    assert torch.equal(grown.float() * back[:, :, None], block_scale.float() * global_scale[:, :, None])
    assert torch.equal(grown[0].view(torch.uint8), codes[0])
    assert grown[1].float().max() > 224


def moe_layer(experts, hidden, intermediate, gated, scale_codes):
    layer = torch.nn.Module()
    layer.quant_config = types.SimpleNamespace(group_size=16)
    layer.moe_runner_config = types.SimpleNamespace(is_gated=gated)
    layer.intermediate_size_per_partition, layer.params_dtype = intermediate, BF16
    checkpoints = {}
    for name, rows, columns in (
        ("w13", intermediate * (2 if gated else 1), hidden),
        ("w2", hidden, intermediate),
    ):
        parts = [checkpoint(rows, columns, seed=e, scale_codes=scale_codes[e]) for e in range(experts)]
        checkpoints[name] = parts
        scale = torch.stack([p[1].view(torch.uint8) for p in parts]).view(torch.float8_e4m3fn)
        for suffix, value in (
            ("weight", torch.stack([p[0] for p in parts])),
            ("weight_scale", scale),
            ("weight_scale_2", torch.tensor([2.0**-12, 2.0**-9, 2.0**-14][:experts])),
        ):
            setattr(layer, f"{name}_{suffix}", torch.nn.Parameter(value, requires_grad=False))
    return layer, checkpoints


@pytest.mark.parametrize(("gated", "intermediate"), [(True, 64), (True, 128), (False, 128), (False, 80)])
def test_a_prepared_moe_layer_holds_its_checkpoint(twin, gated, intermediate):
    codes = [range(0x08, 0x7F), [0x01, 0x02, 0x05], range(0x08, 0x30)]
    layer, checkpoints = moe_layer(3, 128, intermediate, gated, codes)
    global_scales = {n: getattr(layer, f"{n}_weight_scale_2").clone() for n in ("w13", "w2")}
    marlin.prepare_moe_nvfp4_layer_for_marlin(layer)
    for name, parts in checkpoints.items():
        for expert, (packed, block_scale, _) in enumerate(parts):
            got = twin.dequantize(
                getattr(layer, f"{name}_weight")[expert],
                getattr(layer, f"{name}_weight_scale")[expert],
                getattr(layer, f"{name}_weight_scale_2")[expert],
                BF16,
            )
            want = nvfp4_numerics.dequantize(packed, block_scale, global_scales[name][expert])
            assert torch.equal(got[: want.shape[0], : want.shape[1]], want), (name, expert)
            assert not got[want.shape[0] :].any() and not got[:, want.shape[1] :].any()


def test_a_global_scale_beyond_bf16_overflows_and_is_seen(twin):
    """2**119 is folded into the global scale: from 512 up BF16 has no room. Checkpoints stay far below."""
    assert torch.isfinite(marlin.nvfp4_marlin_process_global_scale(torch.tensor(256.0, dtype=BF16))).all()
    assert not torch.isfinite(marlin.nvfp4_marlin_process_global_scale(torch.tensor(512.0, dtype=BF16))).all()


def test_group_size_other_than_16_is_refused(twin):
    layer = dense_layer(*checkpoint(64, 128))
    layer.quant_config.group_size = 32
    with pytest.raises(ValueError, match="group_size=16"):
        marlin.prepare_nvfp4_layer_for_marlin(layer)
