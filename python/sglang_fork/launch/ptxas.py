# SPDX-License-Identifier: Apache-2.0
"""The ptxas that Triton and the JIT builds will run, and whether each knows the GPUs of this machine.

Triton brings two of its own and takes ``ptxas-blackwell`` from compute capability 10.0 up; each has its
variable. JIT builds run the one of CUDA_HOME. A GB10 needs sm_121a of both.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

TRITON = "triton/backends/nvidia/bin"
Ask = Callable[[Path], frozenset[str]]


@dataclass(frozen=True)
class Choice:
    """Variables that the server needs, and reasons against a start."""

    variables: Mapping[str, str]
    reasons: tuple[str, ...]


def target(isa: str) -> str:
    """What kernels are compiled for on an ISA: ``sm_121`` needs ``sm_121a``."""
    return f"{isa}a" if int(isa.removeprefix("sm_")) >= 90 else isa


def triton_tool(isa: str) -> tuple[str, str]:
    """``(variable, file name)`` of the ptxas that Triton runs for an ISA."""
    if int(isa.removeprefix("sm_")) >= 100:
        return "TRITON_PTXAS_BLACKWELL_PATH", "ptxas-blackwell"
    return "TRITON_PTXAS_PATH", "ptxas"


def architectures(path: Path) -> frozenset[str]:
    """The architectures that a ptxas accepts, from its help; none where it does not run."""
    try:
        done = subprocess.run([str(path), "--help"], capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return frozenset()
    return frozenset(re.findall(r"'(sm_\d+[af]?)'", done.stdout))


def choose(
    packages: Path | None, isas: Iterable[str], environ: Mapping[str, str], ask: Ask = architectures
) -> Choice:
    """What to set, and what is in the way, for GPUs of these ISAs.

    ``packages`` is the built environment's site-packages; ``environ`` is what the server will see, CUDA_HOME
    included. A variable that the user set is kept, and refused where it names a ptxas that is too old.
    """
    variables: dict[str, str] = {}
    reasons: list[str] = []
    home = environ.get("CUDA_HOME")
    toolkit = Path(home) / "bin" / "ptxas" if home else None
    for isa in sorted(set(isas)):
        wanted = target(isa)
        in_toolkit = toolkit is not None and wanted in ask(toolkit)
        if toolkit is not None and not in_toolkit:
            reasons.append(
                f"{toolkit} does not know {wanted}: kernels that are compiled at first use cannot be built; "
                "unset CUDA_HOME to use the built environment's own"
            )
        variable, name = triton_tool(isa)
        given = environ.get(variable)
        own = Path(given) if given else packages / TRITON / name if packages is not None else None
        if own is not None and wanted in ask(own):
            continue
        if given:
            reasons.append(f"{variable}={given} does not know {wanted}: name a newer ptxas, or unset it")
        elif in_toolkit:
            variables[variable] = str(toolkit)
        else:
            reasons.append(
                f"no ptxas in reach knows {wanted}: Triton kernels cannot be built; ./sglang.sh build, or "
                f"name a newer one in {variable}"
            )
    return Choice(variables, tuple(reasons))


def site_packages(venv: Path) -> Path | None:
    """A virtual environment's site-packages."""
    return next(iter(sorted(venv.glob("lib/python3*/site-packages"))), None)
