# SPDX-License-Identifier: Apache-2.0
"""Builds SGLang's model classes as on a GPU, on the meta device, and prints their parameters.

    python build_on_meta.py ISA FOLDER CONFIG,QUANTIZATION,[LAYERS]...

One rank of one; ``LAYERS`` cuts the stack (the layers that matter come first in every family). The last line
is JSON: config -> ``{"class": ..., "layers": [class of each], "parameters": {name: [shape, dtype]}}`` or
``{"error": text}``. Nearly all of the time is SGLang's imports, so it is imported once, and each model is
built in a child of its own.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

import configs
import fake_gpu
import torch
from children import in_child


def shortened(config: dict[str, Any], layers: int) -> dict[str, Any]:
    """The same model with fewer layers; every per-layer list is cut to match."""
    out = {**config}
    if "text_config" in out:
        out["text_config"] = shortened(out["text_config"], layers)
    if "num_hidden_layers" not in out:
        return out
    old = out["num_hidden_layers"]
    out["num_hidden_layers"] = layers
    for name, value in config.items():
        if isinstance(value, list) and len(value) == old:
            out[name] = value[:layers]
    if (linear := out.get("linear_attn_config")) is not None:
        kinds = {k: [i for i in linear[k] if i <= layers] for k in ("full_attn_layers", "kda_layers")}
        out["linear_attn_config"] = {**linear, **kinds}
    return out


# What --quantization resolves to for each stored format.
SCHEMES = {"modelopt": "modelopt_fp4", "compressed-tensors": "compressed-tensors", "fp8": "fp8", "none": None}


def preload(isa: str) -> None:
    """Import SGLang, its model classes too, with the GPU to be seen."""
    fake_gpu.install(isa)
    import deep_gemm

    deep_gemm.get_num_sms = lambda *_: fake_gpu.CARDS[isa].multiprocessors
    deep_gemm.set_num_sms = lambda *_: None
    for name in ("server_args", "model_loader.loader", "models.registry"):
        importlib.import_module(f"sglang.srt.{name}")


def build(folder: Path, scheme: str | None) -> Any:
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.distributed import parallel_state
    from sglang.srt.layers.dp_attention import initialize_dp_attention
    from sglang.srt.layers.moe import initialize_moe_config
    from sglang.srt.model_loader.loader import _get_quantization_config, _initialize_model
    from sglang.srt.runtime_context import SpawnRanks, publish, reset_context
    from sglang.srt.server_args import ServerArgs

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
    server_args = ServerArgs(
        model_path=str(folder),
        device="cuda",
        load_format="dummy",
        disable_radix_cache=True,
        quantization=scheme,
    )
    reset_context()
    publish(server_args, role="test", ranks=SpawnRanks(world_rank=0))
    with fake_gpu.Redirect("cpu"):
        parallel_state.init_distributed_environment(world_size=1, rank=0, local_rank=0, backend="gloo")
        parallel_state.initialize_model_parallel(backend="gloo")
        model_config = ModelConfig.from_server_args(server_args)
        _call(initialize_dp_attention, server_args, model_config)
        _call(initialize_moe_config, server_args)
    _without_tokenizer(model_config.hf_text_config)
    torch.set_default_dtype(model_config.dtype)
    load_config = LoadConfig(load_format="dummy")
    quant_config = _get_quantization_config(model_config, load_config)
    with torch.device("meta"), fake_gpu.Redirect("meta"):
        return _initialize_model(model_config, load_config, quant_config)


def _without_tokenizer(config: Any) -> None:
    """DeepSeek-V4.1's Engram reads the checkpoint's tokenizer for a table of this size."""
    from sglang.srt.layers import engram

    size = getattr(config, "engram_compressed_vocab_size", 0)
    table = [token % size for token in range(config.vocab_size)] if size else []
    engram.get_tokenizer = lambda *args, **kwargs: None
    engram.build_compressed_token_map = lambda tokenizer: (table, size)


def _call(function: Any, *arguments: Any) -> None:
    """Call with as many of the arguments, from the right, as it takes."""
    count = len(inspect.signature(function).parameters)
    function(*arguments[len(arguments) - count :] if count else ())


def built(folder: Path, name: str, quantization: str, layers: str) -> dict[str, Any]:
    path = configs.write(folder / name, name, "" if quantization == "none" else quantization)
    if layers:
        file = path / "config.json"
        file.write_text(json.dumps(shortened(json.loads(file.read_text()), int(layers))))
    try:
        model = build(path, SCHEMES[quantization])
    except Exception:
        return {"error": traceback.format_exc()}
    stack = next(m for n, m in model.named_modules() if n.endswith("model.layers"))
    parameters = {
        n: [list(p.shape), str(p.dtype).removeprefix("torch.")] for n, p in model.named_parameters()
    }
    if any(p.device.type != "meta" for p in model.parameters()):
        return {"error": "a parameter took real memory"}
    kinds = [type(layer).__name__ for layer in stack.children()]
    return {"class": type(model).__name__, "layers": kinds, "parameters": parameters}


def main() -> None:
    isa, folder, *models = sys.argv[1:]
    preload(isa)
    answers = {}
    for model in models:
        name, quantization, layers = model.split(",")
        answers[name] = in_child(built, Path(folder), name, quantization, layers)
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
