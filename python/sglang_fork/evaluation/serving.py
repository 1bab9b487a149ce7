# SPDX-License-Identifier: Apache-2.0
"""The servers that are asked: given by address, or a preset started here and ended when it has answered."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sglang_fork import env, preset
from sglang_fork.evaluation.client import Server
from sglang_fork.launch import port, process, record, serve, start, tiny
from sglang_fork.resolve import resolve

MODEL_PATH = "SGLANG_NVIDIA_MEGAKERNEL_E2E_MODEL_PATH"
URL = "SGLANG_NVIDIA_MEGAKERNEL_E2E_URL"
LOGS = "SGLANG_NVIDIA_MEGAKERNEL_E2E_LOGS"


@dataclass(frozen=True)
class Choice:
    """Which preset to start, on what, and how long to wait for it."""

    preset: str
    tiny: bool = False
    machine: str | None = None
    timeout_s: float = 3600.0


def shell_of(environ: Mapping[str, str], mode: str | None) -> dict[str, str]:
    """The shell that a preset is resolved in: ours, on a free local port, with the megakernel as asked."""
    shell = {name: value for name, value in environ.items() if name not in ("HOST", "PORT", "MEGAKERNEL")}
    if mode is not None:
        shell["MEGAKERNEL"] = mode
    elif "MEGAKERNEL" in environ:
        shell["MEGAKERNEL"] = environ["MEGAKERNEL"]
    return shell


@contextmanager
def started(choice: Choice, mode: str | None, logs: Path) -> Iterator[tuple[Server, str]]:
    """A server of the preset and what it says of its megakernel; its log is kept in ``logs``."""
    name = f"eval-{mode or 'preset'}-{os.getpid()}"
    chosen = preset.load(choice.preset)
    chosen = chosen.on(choice.machine) if choice.machine else chosen
    extra = ["--port", str(port.unused())]
    if path := os.environ.get(MODEL_PATH):
        extra += ["--model-path", path]
    resolution = resolve(chosen, shell_of(os.environ, mode), extra)
    profile = env.built_profile() or ("cpu" if choice.tiny else "cuda")
    if choice.tiny:
        resolution, _ = tiny.apply(resolution, profile)
    try:
        start.launch(resolution, profile, name, is_tiny=choice.tiny, timeout_s=choice.timeout_s, detach=True)
        known = record.find(name)
        assert known is not None, "launch records what it starts"
        yield Server(known.url), known.megakernel
    finally:
        if (known := record.find(name)) is not None:
            process.end(known.identity, serve.DRAIN_S)
            if known.log.is_file():
                shutil.copy(known.log, logs / f"server-{mode or 'preset'}.log")
            known.forget()
