# SPDX-License-Identifier: Apache-2.0
"""A ModelOpt-style copy of the tiny Qwen3.5: routed experts in NVFP4, projections in static FP8.

The same layers in the same formats as the published NVFP4 checkpoint of 397B: router, GDN gates, convolution,
norms, embedding, head and the MTP layer stay BF16. Weight ``[N, K]``:

* FP8: E4M3 ``weight``, FP32 ``weight_scale`` = amax / 448, FP32 ``input_scale`` = amax of its input / 448.
* NVFP4: two E2M1 codes a byte (even column low) ``weight`` ``[N, K/2]``, E4M3 ``weight_scale``
  ``[N, K/16]``, FP32 ``weight_scale_2`` = amax / (6 * 448), ``input_scale`` = amax of its input / (6 * 448).
  An expert's gate and up share ``weight_scale_2``, for kernels run them as one matrix.

Inputs are measured on the text given, in FP32, and rounded up to three mantissa bits so that the order of a
machine's sums does not show: the same bytes everywhere.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sglang_fork.checkpoints import qwen3_5, tensorfile, tokenizer
from sglang_fork.checkpoints.tensorfile import Blob
from sglang_fork.checkpoints.train import data as streams
from sglang_fork.checkpoints.train import save
from sglang_fork.checkpoints.train.model import Experts, Qwen35

GROUP = 16
E2M1_MAX, E4M3_MAX = 6.0, 448.0
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
FP8_LAYERS = (
    "linear_attn.in_proj_qkv",
    "linear_attn.in_proj_z",
    "linear_attn.out_proj",
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.shared_expert.gate_proj",
    "mlp.shared_expert.up_proj",
    "mlp.shared_expert.down_proj",
)
FUSED = (
    ("linear_attn.in_proj_qkv", "linear_attn.in_proj_z"),
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"),
)
"""Layers that servers run as one matrix, with one scale: they share theirs, or a server would round again."""
DTYPES = {torch.bfloat16: "BF16", torch.float32: "F32", torch.float8_e4m3fn: "F8_E4M3", torch.uint8: "U8"}


def rounded_up(amax: float) -> float:
    """The next number with three mantissa bits, at least ``amax``."""
    fraction, exponent = math.frexp(amax)
    return math.ldexp(math.ceil(fraction * 16) / 16, exponent)


def to_fp8(weight: Tensor, scale: Tensor) -> Tensor:
    """E4M3 codes, to be multiplied by ``scale``."""
    return (weight.float() / scale).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)


def fp8_scale(weights: dict[str, Tensor], layer: str) -> Tensor:
    """amax / 448 of a layer and of those that are fused with it."""
    group = next((group for group in FUSED if layer.endswith(group)), ())
    own = next((part for part in group if layer.endswith(part)), "")
    fused = [layer.removesuffix(own) + part for part in group] or [layer]
    return torch.stack([weights[f"{part}.weight"].float().abs().amax() for part in fused]).amax() / E4M3_MAX


def to_nvfp4(weight: Tensor, tensor_scale: Tensor) -> tuple[Tensor, Tensor]:
    """Packed E2M1 codes and the E4M3 scale of each ``GROUP`` columns. Ties round to the even code."""
    blocks = weight.float().unflatten(-1, (-1, GROUP))
    scale = (blocks.abs().amax(-1) / E2M1_MAX / tensor_scale).clamp(max=E4M3_MAX).to(torch.float8_e4m3fn)
    divisor = (scale.float() * tensor_scale).unsqueeze(-1)
    scaled = torch.where(divisor > 0, blocks / divisor, torch.zeros_like(blocks))
    codes = e2m1_codes(scaled).flatten(-2)
    return codes[..., 0::2] | codes[..., 1::2] << 4, scale


def e2m1_codes(values: Tensor) -> Tensor:
    """Codes 0 to 15 of the nearest E2M1 values, sign in bit 3; beyond 6 they saturate."""
    grid = torch.tensor(E2M1)
    middles = (grid[1:] + grid[:-1]) / 2
    size = values.abs()
    above = torch.bucketize(size, middles, right=False)  # a value on a middle takes the lower code
    tie = (above < 7) & (size == middles[above.clamp(max=6)]) & (above % 2 == 1)
    code = (above + tie).to(torch.uint8)
    return code | ((values < 0) & (code > 0)).to(torch.uint8) << 3


class Inputs:
    """The largest input that each layer and each expert saw."""

    def __init__(self, model: Qwen35) -> None:
        self.amax: dict[str, float] = {}
        for name, module in model.model.named_modules(prefix="model"):
            if isinstance(module, nn.Linear):
                module.register_forward_pre_hook(self._of_linear(name))
            if isinstance(module, Experts):
                module.register_forward_pre_hook(self._of_experts(name))

    def _see(self, name: str, values: Tensor) -> None:
        if values.numel():
            self.amax[name] = max(self.amax.get(name, 0.0), float(values.abs().amax()))

    def _of_linear(self, name: str) -> Any:
        return lambda _, inputs: self._see(name, inputs[0])

    def _of_experts(self, name: str) -> Any:
        def see(experts: Experts, inputs: tuple[Tensor, Tensor]) -> None:
            x, weights = inputs
            for expert in range(qwen3_5.EXPERTS):
                mine = x[weights[..., expert] > 0]
                gate, up = (mine @ experts.gate_up_proj[expert].T).chunk(2, -1)
                self._see(f"{name}.{expert}.gate_proj", mine)
                self._see(f"{name}.{expert}.up_proj", mine)
                self._see(f"{name}.{expert}.down_proj", nn.functional.silu(gate) * up)

        return see

    def scale(self, name: str, largest: float) -> Tensor:
        return torch.tensor(rounded_up(self.amax[name]) / largest)


@torch.no_grad()
def measured_inputs(model: Qwen35, text: str) -> Inputs:
    inputs = Inputs(model)
    encoder = streams.load_tokenizer()
    for line in text.splitlines():
        model(torch.tensor([encoder.encode(line).ids]))
    return inputs


@torch.no_grad()
def tensors(model: Qwen35, inputs: Inputs) -> Iterator[tuple[str, Tensor]]:
    weights = model.state_dict()
    for name, weight in weights.items():
        layer = name.removesuffix(".weight")
        if name.startswith("model.") and layer.endswith(FP8_LAYERS):
            scale = fp8_scale(weights, layer)
            yield name, to_fp8(weight, scale)
            yield f"{layer}.weight_scale", scale
            yield f"{layer}.input_scale", inputs.scale(layer, E4M3_MAX)
        elif name.startswith("model.") and name.endswith("experts.gate_up_proj"):
            prefix = name.removesuffix(".gate_up_proj")
            for expert, both in enumerate(weight):
                shared = both.float().abs().amax() / (E2M1_MAX * E4M3_MAX)
                gate, up = both.chunk(2)
                yield from nvfp4_layer(f"{prefix}.{expert}.gate_proj", gate, shared, inputs)
                yield from nvfp4_layer(f"{prefix}.{expert}.up_proj", up, shared, inputs)
        elif name.startswith("model.") and name.endswith("experts.down_proj"):
            for expert, down in enumerate(weight):
                own = down.float().abs().amax() / (E2M1_MAX * E4M3_MAX)
                yield from nvfp4_layer(
                    f"{name.removesuffix('.down_proj')}.{expert}.down_proj", down, own, inputs
                )
        else:
            yield name, weight.bfloat16()


def nvfp4_layer(layer: str, weight: Tensor, scale: Tensor, inputs: Inputs) -> Iterator[tuple[str, Tensor]]:
    codes, blocks = to_nvfp4(weight, scale)
    yield f"{layer}.weight", codes
    yield f"{layer}.weight_scale", blocks
    yield f"{layer}.weight_scale_2", scale
    yield f"{layer}.input_scale", inputs.scale(layer, E2M1_MAX * E4M3_MAX)


def quantization(names: list[str]) -> dict[str, Any]:
    """ModelOpt's account of which layer has which format."""
    layers: dict[str, dict[str, Any]] = {}
    for name in names:
        if name.endswith(".weight_scale_2"):
            layers[name.removesuffix(".weight_scale_2")] = {"quant_algo": "NVFP4", "group_size": GROUP}
        elif name.endswith(".input_scale"):
            layers.setdefault(name.removesuffix(".input_scale"), {"quant_algo": "FP8"})
    ignored = ["lm_head", "model.embed_tokens", "mtp*"]
    return {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers, "exclude_modules": ignored}


def blob(name: str, tensor: Tensor) -> Blob:
    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return Blob(name, DTYPES[tensor.dtype], tuple(tensor.shape), data)


def write(source: Path, out: Path, text: str) -> None:
    """Quantise the checkpoint at ``source`` to ``out``; ``text`` is what its inputs are measured on."""
    model = save.load(source)
    made = list(tensors(model, measured_inputs(model, text)))
    account = quantization([name for name, _ in made])
    config = json.loads((source / "config.json").read_text("utf-8"))
    own = {"quant_method": "modelopt", "ignore": account["exclude_modules"]}
    config["quantization_config"] = account | own | {"producer": {"name": "sglang-mega"}}
    del config["quantization_config"]["exclude_modules"]
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(tokenizer.dump(config), "utf-8")
    (out / "hf_quant_config.json").write_text(tokenizer.dump({"quantization": account}), "utf-8")
    for name in ("tokenizer.json", "tokenizer_config.json", save.RECORD):
        if (source / name).is_file():
            shutil.copy(source / name, out / name)
    tensorfile.write(out / "model.safetensors", (blob(name, tensor) for name, tensor in made))


def main() -> None:
    parser = argparse.ArgumentParser(prog="quantise")
    for name in ("source", "out", "text"):
        parser.add_argument(name, type=Path)
    args = parser.parse_args()
    write(args.source, args.out, args.text.read_text("ascii"))


if __name__ == "__main__":
    main()
