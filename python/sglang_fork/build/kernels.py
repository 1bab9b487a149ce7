# SPDX-License-Identifier: Apache-2.0
"""Compiles the megakernels ahead of time into the cubin cache; without it they are compiled at load."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from sglang_fork import env
from sglang_fork.errors import ForkError
from sglang_fork.launch import hardware

ARCHITECTURES = ("sm_90a", "sm_100a", "sm_103a", "sm_121a")
MODULE = "sglang.srt.mega.device.build_cubins"


def architectures(words: Sequence[str]) -> list[str]:
    """The architectures named on the command line; all of them for an empty list."""
    for word in words:
        if word not in ARCHITECTURES:
            raise ForkError(f"unknown architecture {word}", f"architectures: {', '.join(ARCHITECTURES)}")
    return list(dict.fromkeys(words)) or list(ARCHITECTURES)


def gpu_architectures() -> list[str]:
    """The architectures of this machine's GPUs that have kernels; empty where there is no GPU."""
    return sorted({f"{gpu.isa}a" for gpu in hardware.gpus()} & set(ARCHITECTURES))


def compile_kernels(profile: str, archs: Sequence[str]) -> None:
    """Compile every kernel for ``archs`` with the profile's own NVRTC; needs no GPU."""
    variables = os.environ | env.process_env(profile)
    variables.pop("PYTHONPATH", None)
    command = [str(env.venv_dir(profile) / "bin" / "python"), "-P", "-m", MODULE, "--arch", *archs]
    done = subprocess.run(command, env=variables)
    if done.returncode:
        raise ForkError(
            f"compiling the kernels ended with status {done.returncode}", "see the lines above", code=1
        )
