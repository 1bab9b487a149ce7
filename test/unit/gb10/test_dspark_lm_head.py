# SPDX-License-Identifier: Apache-2.0
"""What a DSpark draft computes with its target's lm_head, by the state that the head is in."""

from types import SimpleNamespace

import pytest
import torch

from sglang.srt.layers.quantization import fp8_post_quant, nvfp4_numerics
from sglang.srt.layers.quantization.marlin_utils_fp4 import prepare_nvfp4_layer_for_marlin
from sglang.srt.layers.quantization.modelopt_quant import ModelOptNvFp4A16LinearMethod
from sglang.srt.layers.quantization.unquant import UnquantizedEmbeddingMethod
from sglang.srt.models.deepseek_v4_dspark import DeepseekV4ForCausalLMDSpark
from sglang.srt.models.dspark import project_through_lm_head

ROWS, COLUMNS = 256, 128


def weight():
    return torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(3)).bfloat16() * 0.1


def hidden():
    return torch.randn(5, COLUMNS, generator=torch.Generator().manual_seed(4)).bfloat16()


def head(tensor, method):
    made = torch.nn.Module()
    made.weight = torch.nn.Parameter(tensor, requires_grad=False)
    made.quant_method = method
    return made


def nvfp4_head():
    """A ModelOpt head after loading on a device that serves it through Marlin, and its exact matrix."""
    packed, block_scale, global_scale = nvfp4_numerics.quantize(weight())
    made = head(packed, ModelOptNvFp4A16LinearMethod.__new__(ModelOptNvFp4A16LinearMethod))
    made.quant_config = SimpleNamespace(group_size=nvfp4_numerics.GROUP)
    made.params_dtype = torch.bfloat16
    made.output_size_per_partition, made.input_size_per_partition = ROWS, COLUMNS
    made.weight_scale = torch.nn.Parameter(block_scale, requires_grad=False)
    made.weight_global_scale = torch.nn.Parameter(global_scale, requires_grad=False)
    prepare_nvfp4_layer_for_marlin(made)
    return made, nvfp4_numerics.dequantize(packed, block_scale, global_scale)


def fp8_head():
    made = head(weight(), UnquantizedEmbeddingMethod())
    fp8_post_quant.Fp8Quantizer().quantize(made)
    return made, weight().float()


def error(got, matrix):
    want = hidden().float() @ matrix.T
    return float((got.float() - want).norm() / want.norm())


def test_an_nvfp4_head_is_multiplied_by_its_own_kernel(twin):
    made, matrix = nvfp4_head()
    assert error(project_through_lm_head(hidden(), made), matrix) < 0.01


def test_a_post_quantized_head_keeps_its_scales():
    made, matrix = fp8_head()
    assert error(project_through_lm_head(hidden(), made), matrix) < 0.05


def test_a_dense_head_is_a_plain_product():
    made = head(weight(), UnquantizedEmbeddingMethod())
    assert error(project_through_lm_head(hidden(), made), weight().float()) < 0.01


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.float8_e4m3fn])
def test_codes_that_no_method_owns_are_refused(dtype):
    """A head that was packed, and a draft whose method knows nothing of it."""
    made = head(torch.ones(ROWS, COLUMNS).to(dtype), UnquantizedEmbeddingMethod())
    with pytest.raises(ValueError, match="lm_head is not quantized"):
        project_through_lm_head(hidden(), made)


@pytest.mark.parametrize("make", [nvfp4_head, fp8_head])
def test_the_fp32_head_of_deepseek_v4_reads_dense_weights_alone(twin, monkeypatch, make):
    monkeypatch.setattr(
        "sglang.srt.models.deepseek_v4_dspark.gather_and_crop_vocab", lambda logits, head: logits
    )
    made, matrix = make()
    draft = SimpleNamespace(
        lm_head=made,
        stages=[SimpleNamespace(norm=lambda x: x)],
        _use_fp32_lm_head=True,
        _opt_markov_w2_tp_shard=False,
    )
    logits = DeepseekV4ForCausalLMDSpark._logits_from_x_post_hc(draft, hidden())
    assert error(logits, matrix) < 0.05
    draft.lm_head = head(weight(), UnquantizedEmbeddingMethod())
    assert DeepseekV4ForCausalLMDSpark._logits_from_x_post_hc(draft, hidden()).dtype == torch.float32
