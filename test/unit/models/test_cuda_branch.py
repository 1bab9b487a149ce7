# SPDX-License-Identifier: Apache-2.0
"""The CUDA branch of SGLang's four model families at production shapes: what a kernel will find to read.

Each class is built on the meta device as on an SM103 GPU, one rank of one, and its parameters' names, shapes
and dtypes are pinned in ``pinned/<name>.txt``. A change upstream shows as a diff of that file.
``UPDATE_GOLDEN=1 pytest test/unit/models`` rewrites them; review the diff.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sglang_fork import env, memory

HERE = Path(__file__).parent
SCRIPT = HERE / "production" / "build_on_meta.py"
# Configuration, how its checkpoint stores weights, and layers to build ("" is all: V4.1's layers refer to
# layer 20 from the first on).
FAMILIES = {
    "qwen3_5_397b": ("modelopt", "4"),
    "glm_5_2": ("modelopt", "5"),
    "kimi_k3": ("none", "5"),
    "deepseek_v41_flash": ("none", ""),
}
# The released vision towers' shapes are not published; they are built small and not pinned.
VISION = re.compile(r"^(visual|vision_tower|mm_projector|model\.visual)\b")

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("sglang.srt.server_args") is None,
    reason="SGLang is not installed in this Python; ./sglang.sh test runs these in the built environment",
)

Built = dict[str, Any]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Built]:
    environ = {**os.environ, **env.process_env("cpu")}
    environ.pop("SGLANG_USE_CPU_ENGINE", None)
    models = [f"{name},{stored},{layers}" for name, (stored, layers) in FAMILIES.items()]
    command = [sys.executable, str(SCRIPT), "sm_103", str(tmp_path_factory.mktemp("models")), *models]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    out: dict[str, Built] = json.loads(done.stdout.strip().splitlines()[-1])
    assert [(name, model["error"][-3000:]) for name, model in out.items() if "error" in model] == []
    return out


def language(model: Built) -> dict[str, tuple[tuple[int, ...], str]]:
    """The language model's parameters: name -> (shape, dtype)."""
    return {n: (tuple(s), d) for n, (s, d) in model["parameters"].items() if not VISION.match(n)}


def summary(model: Built) -> str:
    """One line a parameter; those of equal layers share a line that names the layers."""
    lines: dict[str, list[int]] = {}
    for name, (shape, dtype) in language(model).items():
        layer = re.search(r"\blayers\.(\d+)\.", name)
        text = f"{name.replace(layer[0], 'layers.*.') if layer else name} {list(shape)} {dtype}"
        lines.setdefault(text, []).extend([int(layer[1])] if layer else [])
    kinds: dict[str, list[int]] = {}
    for index, kind in enumerate(model["layers"]):
        kinds.setdefault(kind, []).append(index)
    head = [model["class"], *(f"{kind}: layers {ranges(at)}" for kind, at in kinds.items()), ""]
    return "\n".join([*head, *(f"{t}{f' @ {ranges(at)}' if at else ''}" for t, at in lines.items())]) + "\n"


def ranges(numbers: list[int]) -> str:
    """``[0, 1, 2, 5]`` as ``0-2,5``."""
    out: list[list[int]] = []
    for number in numbers:
        if out and number == out[-1][1] + 1:
            out[-1][1] = number
        else:
            out.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in out)


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_names_shapes_and_dtypes_are_pinned(name: str, built: dict[str, Built]) -> None:
    text, golden = summary(built[name]), HERE / "pinned" / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        golden.write_text(text)
    assert text == golden.read_text()


def layer(model: Built, index: int, prefix: str = "model.") -> dict[str, tuple[tuple[int, ...], str]]:
    start = f"{prefix}layers.{index}."
    return {n.removeprefix(start): v for n, v in language(model).items() if n.startswith(start)}


def test_qwen3_5_fuses_its_projections(built: dict[str, Built]) -> None:
    c = memory.config("qwen3_5_397b")["text_config"]
    key = c["linear_num_key_heads"] * c["linear_key_head_dim"]
    value = c["linear_num_value_heads"] * c["linear_value_head_dim"]
    gdn, full = layer(built["qwen3_5_397b"], 0), layer(built["qwen3_5_397b"], 3)
    hidden = c["hidden_size"]
    assert gdn["linear_attn.in_proj_qkvz.weight"][0] == (2 * key + 2 * value, hidden)
    assert gdn["linear_attn.in_proj_ba.weight"][0] == (2 * c["linear_num_value_heads"], hidden)
    assert gdn["linear_attn.conv1d.weight"][0] == (2 * key + value, 1, c["linear_conv_kernel_dim"])
    heads = 2 * c["num_attention_heads"] + 2 * c["num_key_value_heads"]  # the query's gate beside it
    assert full["qkv_proj.weight"][0] == (heads * c["head_dim"], hidden)


@pytest.mark.parametrize(("name", "first_moe"), [("qwen3_5_397b", 0), ("glm_5_2", 3)])
def test_nvfp4_experts_are_packed_with_a_scale_a_16(
    name: str, first_moe: int, built: dict[str, Built]
) -> None:
    experts = layer(built[name], first_moe)
    for part in ("w13", "w2"):
        shape, dtype = experts[f"mlp.experts.{part}_weight"]
        scale, scale_dtype = experts[f"mlp.experts.{part}_weight_scale"]
        assert (dtype, scale_dtype) == ("uint8", "float8_e4m3fn")
        assert scale == (*shape[:2], shape[2] * 2 // 16), "two weights a byte, one scale for 16"


def test_glm_fuses_the_indexer_key_and_weights_on_cuda(built: dict[str, Built]) -> None:
    """On a CPU these are two parameters, wk and weights_proj: a kernel must not look for those here."""
    c, first = memory.config("glm_5_2"), layer(built["glm_5_2"], 0)
    rows = c["index_head_dim"] + c["index_n_heads"]
    assert first["self_attn.indexer.wk_weights_proj.weight"][0] == (rows, c["hidden_size"])
    assert not any("indexer.wk.weight" in n or "indexer.weights_proj" in n for n in first)
    latent = c["q_lora_rank"] + c["kv_lora_rank"] + c["qk_rope_head_dim"]
    assert first["self_attn.fused_qkv_a_proj_with_mqa.weight"][0] == (latent, c["hidden_size"])
    assert not any("indexer" in n for n in layer(built["glm_5_2"], 3)), "a shared layer has no indexer"


def test_kimi_k3_alternates_and_its_experts_are_latent(built: dict[str, Built]) -> None:
    c, model = memory.config("kimi_k3")["text_config"], built["kimi_k3"]
    kda, mla = (layer(model, i, "language_model.model.") for i in (0, 3))
    width = c["linear_attn_config"]["num_heads"] * c["linear_attn_config"]["head_dim"]
    assert kda["self_attn.fused_qkvg_proj.weight"][0] == (4 * width, c["hidden_size"])
    assert "self_attn.kv_b_proj.weight" in mla and "self_attn.g_proj.weight" in mla
    latent, inter = c["routed_expert_hidden_size"], c["moe_intermediate_size"]
    assert mla["mlp.experts.w13_weight"][0] == (c["num_experts"], 2 * inter, latent)


def test_deepseek_v41_sources_and_engram_layers(built: dict[str, Built]) -> None:
    c = memory.config("deepseek_v41_flash")["text_config"]
    model = built["deepseek_v41_flash"]
    layers = [layer(model, i) for i in range(c["num_hidden_layers"])]
    with_engram = [i for i, names in enumerate(layers) if "engram.embed.weight" in names]
    with_indexer = [i for i, names in enumerate(layers) if "self_attn.indexer.wq_b.weight" in names]
    assert with_engram == c["engram_layer_ids"] and with_indexer == c["index_source_layer_ids"]
    for index, rows in zip(c["engram_layer_ids"], c["engram_num_embeddings"], strict=True):
        assert layers[index]["engram.embed.weight"] == ((rows, c["engram_head_dim"]), "float8_e4m3fn")
    packed = layers[0]["mlp.experts.w13_weight"]
    assert packed == ((c["n_routed_experts"], 2 * c["moe_intermediate_size"], c["hidden_size"] // 2), "int8")
    assert layers[0]["hc_attn_fn"][0] == (c["hc_mult"] * (2 + c["hc_mult"]), c["hc_mult"] * c["hidden_size"])
