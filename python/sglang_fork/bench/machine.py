# SPDX-License-Identifier: Apache-2.0
"""What a measurement says of the machine and the software it ran on. Needs no torch."""

from __future__ import annotations

import subprocess
from importlib import metadata

from sglang_fork.paths import ROOT

PACKAGES = ("sglang", "torch", "triton", "flashinfer-python", "sglang-kernel")


def _smi(field: str) -> str:
    try:
        answer = subprocess.run(
            ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return ""
    return answer.stdout.split("\n")[0].strip() if answer.returncode == 0 else ""


def card() -> str:
    """The first GPU's name; empty without one."""
    return _smi("name")


def versions() -> dict[str, str]:
    """Packages of this Python, and the driver where there is one."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed as a package"
    if driver := _smi("driver_version"):
        found["driver"] = driver
    return found


def tree() -> str:
    """The checkout's tree, short; ``unknown`` outside a checkout."""
    try:
        answer = subprocess.run(
            ["git", "-C", str(ROOT), "rev-parse", "--short=10", "HEAD^{tree}"],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return "unknown"
    return answer.stdout.strip() or "unknown"


def tool_path() -> dict[str, str]:
    """The variable that lets a built environment's Python import this tool."""
    return {"PYTHONPATH": str(ROOT / "python")}
