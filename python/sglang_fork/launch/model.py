# SPDX-License-Identifier: Apache-2.0
"""A model path before the server reads it: does it exist, is it complete, is it the model of the preset."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from sglang_fork import memory
from sglang_fork.errors import ForkError
from sglang_fork.preset import Preset

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def local(path: str) -> Path | None:
    """The folder that a model path names, or None where it is a name on the hub."""
    expanded = Path(path).expanduser()
    if expanded.exists() or path.startswith(("/", ".", "~")):
        return expanded
    return None


def reasons(path: str, preset: Preset) -> list[str]:
    """What is wrong with a model path, all of it."""
    folder = local(path)
    if folder is None:
        ok = HUB_ID.fullmatch(path) is not None
        return [] if ok else [f"model path {path} is neither a folder nor a name on the hub (owner/name)"]
    if not folder.is_dir():
        return [f"model path {path} does not exist or is not a folder"]
    if (folder / "params.json").is_file() and preset.native:
        return _file_reasons(folder)
    try:
        config = json.loads((folder / "config.json").read_text())
    except FileNotFoundError:
        return [f"{path} has no config.json"]
    except ValueError as error:
        return [f"{path}/config.json is not JSON: {error}"]
    if not isinstance(config, dict):
        return [f"{path}/config.json is not a JSON object"]
    return _config_reasons(path, config, preset) + _file_reasons(folder)


def weight_bytes(path: str) -> int | None:
    """The size of a local checkpoint's weights; None for a name on the hub."""
    folder = local(path)
    if folder is None or not folder.is_dir():
        return None
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def _config_reasons(path: str, config: dict[str, Any], preset: Preset) -> list[str]:
    architectures = config.get("architectures")
    if not architectures:
        return [f"{path}/config.json lacks the field architectures"]
    stem = preset.architecture.split("For")[0]
    if not any(str(name).startswith(stem) for name in architectures):
        return [f"{path} is {', '.join(map(str, architectures))}; {preset.name} serves {preset.architecture}"]
    try:
        memory.count(
            memory.config(preset.weights.config) | {"text_config": config.get("text_config", config)}
        )
    except KeyError as missing:
        return [f"{path}/config.json lacks the field {missing.args[0]}"]
    except (ForkError, TypeError) as error:
        return [f"{path}/config.json: {error}"]
    return []


def _file_reasons(folder: Path) -> list[str]:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        found = any(folder.glob("*.safetensors"))
        return [] if found else [f"{folder} has no safetensors weights"]
    try:
        shards = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    except (ValueError, KeyError, AttributeError) as error:
        return [f"{index} is damaged: {error}"]
    missing = [name for name in shards if not (folder / name).is_file()]
    if not missing:
        return []
    more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    return [f"{folder} lacks {', '.join(missing[:3])}{more}"]
