# SPDX-License-Identifier: Apache-2.0
"""The platforms for which upstream publishes wheels."""

from __future__ import annotations

import platform as host
import sys
from dataclasses import dataclass

from sglang_fork.errors import ForkError

PYTHONS = ("cp311", "cp312", "cp313")
MACHINES = ("x86_64", "aarch64")


@dataclass(frozen=True)
class Platform:
    """A wheel's platform: CPython tag (``cp311``) and machine (``x86_64``)."""

    python: str
    machine: str

    def __post_init__(self) -> None:
        if self.python not in PYTHONS or self.machine not in MACHINES:
            raise ForkError(
                f"no SGLang wheel for {self.python} on {self.machine}",
                f"there are wheels for {', '.join(PYTHONS)} on {' and '.join(MACHINES)}",
            )

    @property
    def python_version(self) -> str:
        """``cp311`` as ``3.11``."""
        return f"{self.python[2]}.{self.python[3:]}"

    def wheel_name(self, version: str) -> str:
        """The file name of upstream's wheel of ``version``."""
        return f"sglang-{version}-{self.python}-{self.python}-manylinux_2_34_{self.machine}.whl"


ALL_PLATFORMS = tuple(Platform(python, machine) for python in PYTHONS for machine in MACHINES)


def native_platform() -> Platform:
    """The running Python's platform; where upstream has no wheel for it, x86_64 cp312, whose sources are the
    same.
    """
    python = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    machine = {"arm64": "aarch64", "AMD64": "x86_64"}.get(host.machine(), host.machine())
    if python in PYTHONS and machine in MACHINES:
        return Platform(python, machine)
    return Platform("cp312", "x86_64")
