# SPDX-License-Identifier: Apache-2.0
"""What checks may look at: a root folder, environment variables, commands, the built environment."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from sglang_fork import env
from sglang_fork.build.cudahome import site_packages
from sglang_fork.launch import hardware


@dataclass(frozen=True)
class Machine:
    """This machine; tests subclass it or give another ``root``."""

    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    profile: str | None = None

    def run(self, *command: str) -> str | None:
        """A command's output, None where it cannot be run or fails."""
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout if done.returncode == 0 else None

    def which(self, name: str) -> Path | None:
        """A command on PATH."""
        found = shutil.which(name, path=self.environ.get("PATH"))
        return Path(found) if found else None

    @property
    def arch(self) -> str:
        """``x86_64`` or ``aarch64``."""
        return platform.machine()

    @cached_property
    def gpus(self) -> Sequence[hardware.Gpu]:
        return hardware.gpus(self.environ)

    @property
    def driver(self) -> Path | None:
        return env.driver_library(self.root, self.environ)

    @cached_property
    def glibc(self) -> tuple[int, int]:
        """The C library's version; (0, 0) where it is not glibc."""
        name, version = platform.libc_ver()
        numbers = version.split(".") if name == "glibc" else ["0", "0"]
        return int(numbers[0]), int(numbers[1])

    @property
    def venv(self) -> Path | None:
        """The built environment."""
        return env.venv_dir(self.profile) if self.profile else None

    @property
    def packages(self) -> Path | None:
        """Its site-packages."""
        return site_packages(self.venv) if self.venv else None

    @property
    def cuda_home(self) -> Path | None:
        """The user's CUDA_HOME, else the built environment's own, else the system's."""
        if self.environ.get("CUDA_HOME"):
            return Path(self.environ["CUDA_HOME"])
        own = self.venv / "cuda-home" if self.venv else None
        if own is not None and own.is_dir():
            return own
        system = self.root / "usr/local/cuda"
        return system if system.is_dir() else None

    @property
    def unified_memory(self) -> bool:
        """Whether GPU and CPU share memory, as on GB10: the driver then reports no GPU memory of its own."""
        return any(gpu.isa in ("sm_121", "sm_110", "sm_87") or gpu.memory == 0 for gpu in self.gpus)

    def port_free(self, port: int) -> bool:
        """Whether a server could bind this port on loopback now."""
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return False
        return True
