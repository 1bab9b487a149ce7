# SPDX-License-Identifier: Apache-2.0
"""Every reason why a server could not start here, found before anything is loaded."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sglang_fork import memory
from sglang_fork.errors import ForkError
from sglang_fork.launch import hardware, model, port, record
from sglang_fork.resolve import KEY, KEY_FILE, PER_NODE, ApiKey, Resolution


def check(resolution: Resolution, name: str, *, tiny: bool, also: Sequence[str] = ()) -> None:
    """Raise one ForkError that lists everything in the way of this launch, ``also`` included."""
    reasons = [*also]
    reasons += [f"{variable} is not set: {_meaning(variable)}" for variable in resolution.missing]
    reasons += run_reasons(name)
    if resolution.key is not None:
        reasons += key_reasons(resolution.key)
    reasons += model.reasons(resolution.model_path, resolution.preset)
    reasons += port.reasons(resolution.host, resolution.port)
    if not tiny:
        reasons += hardware_reasons(resolution)
    if not reasons:
        return
    hint = None
    if not tiny and resolution.preset.family and any("GPU" in reason for reason in reasons):
        hint = f"./sglang.sh {resolution.preset.name} --tiny serves its tiny twin with what this machine has"
    listed = "".join(f"\n  - {reason}" for reason in reasons)
    raise ForkError(f"{resolution.preset.name} cannot start here:{listed}", hint)


def run_reasons(name: str) -> list[str]:
    """A server of that name that still runs."""
    known = record.find(name)
    if known is None or not known.identity.alive:
        return []
    return [
        f"{name} already runs as process {known.identity.pid} on port {known.port}; "
        f"./sglang.sh stop {name}, or --name another"
    ]


def key_reasons(key: ApiKey) -> list[str]:
    """What is wrong with the key's file."""
    if not key.path:
        return []
    try:
        text = Path(key.path).read_text()
        mode = Path(key.path).stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        return [f"the API key's file {key.path} cannot be read: {error}"]
    if not text.strip():
        return [f"the API key's file {key.path} is empty"]
    return [f"the API key's file {key.path} is open to others: chmod 600 {key.path}"] if mode & 0o077 else []


def read_key(key: ApiKey | None) -> str | None:
    """The key itself, for the launcher's own request to the server."""
    if key is None:
        return None
    return (Path(key.path).read_text() if key.path else os.environ[key.name]).strip()


def key_of_environment() -> str | None:
    """The key that this shell names, or None; an unreadable file counts as none."""
    if path := os.environ.get(KEY_FILE):
        return None if key_reasons(ApiKey(KEY_FILE, path)) else read_key(ApiKey(KEY_FILE, path))
    return os.environ.get(KEY)


def hardware_reasons(resolution: Resolution) -> list[str]:
    """GPUs, their architecture and the memory on and beside them."""
    preset = resolution.preset
    tensor = _number(resolution, "--tp-size") * _number(resolution, "--pp-size")
    replicas = _number(resolution, "--dp-size")
    nodes = _number(resolution, "--nnodes")
    fraction = resolution.value("--mem-fraction-static")
    return hardware.reasons(
        preset,
        found=hardware.gpus(),
        memory=hardware.host_memory(),
        estimate=_estimate(resolution, tensor),
        needed=max(tensor * replicas // nodes, 1),
        fraction=float(fraction) if fraction else None,
    )


def _estimate(resolution: Resolution, tensor: int) -> memory.Estimate | None:
    """One GPU's share: by the size of a local checkpoint, else by the preset's own model."""
    preset = resolution.preset
    groups = _number(resolution, "--attn-dp-size")
    size = model.weight_bytes(resolution.model_path)
    if size is not None:
        computed = memory.estimate(preset, tensor=tensor, attention_data=groups)
        return replace(computed, weights=max(size - computed.host, 0.0) / tensor)
    if resolution.model_path != preset.model.path:
        return None
    return memory.estimate(preset, tensor=tensor, attention_data=groups)


def _number(resolution: Resolution, flag: str) -> int:
    word = resolution.value(flag, "1")
    if not word.isdigit() or int(word) < 1:
        raise ForkError(f"{flag} {word} is not a positive number")
    return int(word)


def _meaning(variable: str) -> str:
    return next(meaning for name, meaning in PER_NODE.values() if name == variable)
