# SPDX-License-Identifier: Apache-2.0
"""A model path that cannot be served: one clear reason, found before the server starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sglang_fork import memory, preset
from sglang_fork.checkpoints import make
from sglang_fork.launch import model, preflight
from sglang_fork.resolve import resolve

GLM = preset.load("GLM-5.2-NVFP4")


def checkpoint(folder: Path, config: Any, *shards: str, index: Any = None) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    for name in shards:
        (folder / name).write_bytes(b"x" * 1000)
    if index is not None:
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return str(folder)


def test_the_published_configuration_is_accepted(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "m", memory.config("glm_5_2"), "model.safetensors")
    assert model.reasons(path, GLM) == []


@pytest.mark.parametrize("family", sorted(make.FAMILIES))
def test_the_tiny_twins_are_accepted(family: str, tmp_path: Path) -> None:
    p = next(q for q in map(preset.load, preset.names()) if q.family == family)
    assert model.reasons(str(make.make(family, tmp_path / family)), p) == []


def test_a_path_that_does_not_exist() -> None:
    assert model.reasons("/no/such/model", GLM) == [
        "model path /no/such/model does not exist or is not a folder"
    ]
    assert "neither a folder nor a name on the hub" in model.reasons("what is this", GLM)[0]
    assert model.reasons("nvidia/GLM-5.2-NVFP4", GLM) == []


def test_a_folder_without_config(tmp_path: Path) -> None:
    assert model.reasons(str(tmp_path), GLM) == [f"{tmp_path} has no config.json"]


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_damaged_config(text: str, tmp_path: Path) -> None:
    assert "is not" in model.reasons(checkpoint(tmp_path / "m", text), GLM)[0]


@pytest.mark.parametrize("field", ["architectures", "kv_lora_rank", "n_routed_experts", "hidden_size"])
def test_a_config_that_lacks_a_field(field: str, tmp_path: Path) -> None:
    config = memory.config("glm_5_2")
    del config[field]
    (reason,) = model.reasons(checkpoint(tmp_path / "m", config, "model.safetensors"), GLM)
    assert reason.endswith(f"config.json lacks the field {field}")


def test_another_models_checkpoint(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "m", memory.config("kimi_k3"), "model.safetensors")
    (reason,) = model.reasons(path, GLM)
    assert "is KimiK3ForConditionalGeneration; GLM-5.2-NVFP4 serves GlmMoeDsaForCausalLM" in reason


def test_missing_weights(tmp_path: Path) -> None:
    config = memory.config("glm_5_2")
    assert "no safetensors" in model.reasons(checkpoint(tmp_path / "a", config), GLM)[0]
    names = [f"model-{i}.safetensors" for i in range(5)]
    index = {"weight_map": {f"w{i}": name for i, name in enumerate(names)}}
    path = checkpoint(tmp_path / "b", config, names[0], index=index)
    assert model.reasons(path, GLM)[0].endswith(f"lacks {', '.join(names[1:4])} and 1 more")
    path = checkpoint(tmp_path / "c", config, index={"nothing": 1})
    assert "is damaged" in model.reasons(path, GLM)[0]


def test_mistrals_own_format_has_no_config_json(tmp_path: Path) -> None:
    (tmp_path / "params.json").write_text("{}")
    mistral = preset.load("Mistral-Small-4-NVFP4")
    assert "no safetensors" in model.reasons(str(tmp_path), mistral)[0]
    (tmp_path / "consolidated.safetensors").write_bytes(b"x")
    assert model.reasons(str(tmp_path), mistral) == []
    assert model.reasons(str(tmp_path), GLM) == [f"{tmp_path} has no config.json"]


def test_a_local_checkpoints_size_is_what_counts(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "m", memory.config("glm_5_2"), "a.safetensors", "b.safetensors")
    resolution = resolve(GLM, {"GLM_MODEL": path})
    estimate = preflight._estimate(resolution, 8)
    assert estimate is not None and estimate.weights == 2000 / 8
    other = resolve(GLM, {"GLM_MODEL": "someone/else"})
    assert preflight._estimate(other, 8) is None, "nothing is known of another model's size"
