# SPDX-License-Identifier: Apache-2.0
"""Whether the runtime lock is the lock of a given base: used by ``check``, ``rebase`` and ``build``."""

from __future__ import annotations

import zipfile
from pathlib import Path

from sglang_fork.errors import ForkError
from sglang_fork.lock import FOLDER, RUNTIME
from sglang_fork.lock.requirements import (
    Metadata,
    Pin,
    header,
    parse_lock,
    parse_metadata,
    read_lock,
    split_requirement,
)
from sglang_fork.lock.resolve import input_digest, runtime_header

# The compiler, its headers and its libraries must come from one CUDA release.
CUDA_RELEASE = "13.0."
CUDA_TOOLKIT = (
    "cuda-toolkit",
    "nvidia-cuda-cccl",
    "nvidia-cuda-crt",
    "nvidia-cuda-nvcc",
    "nvidia-cuda-nvrtc",
    "nvidia-cuda-runtime",
    "nvidia-nvjitlink",
    "nvidia-nvvm",
)


def wheel_metadata(wheel: Path) -> Metadata:
    """The parsed METADATA of a wheel."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
            return parse_metadata(archive.read(name).decode())
    except (zipfile.BadZipFile, StopIteration) as error:
        raise ForkError(
            f"{wheel.name} is not a readable wheel: {error}", f"delete {wheel} and try again"
        ) from None


def check_lock(metadata: Metadata, folder: Path = FOLDER) -> list[str]:
    """What is wrong with ``folder``'s runtime lock for a base with this metadata; empty when it is right."""
    text = read_lock(folder / RUNTIME)
    pins = parse_lock(text)
    problems = _header_problems(header(text), runtime_header(metadata, folder))
    if "://" in text or "--index" in text or "--find-links" in text:
        problems.append("holds an index address")
    problems += [f"{pin.name}=={pin.version} has no hash" for pin in pins if not pin.hashes]
    problems += _requirement_problems(metadata, pins)
    problems += _toolkit_problems(pins)
    return problems


def inputs_unchanged(folder: Path = FOLDER) -> bool:
    """Whether the runtime lock was made of the input file beside it."""
    return header(read_lock(folder / RUNTIME)).get("inputs") == input_digest(RUNTIME, folder)


def require_lock(metadata: Metadata, folder: Path = FOLDER) -> None:
    """Raise a ForkError that lists every problem of ``check_lock``."""
    problems = check_lock(metadata, folder)
    if problems:
        raise ForkError(
            f"{RUNTIME} is not the lock of this base:\n  " + "\n  ".join(problems), "./sglang.sh lock"
        )


def _header_problems(have: dict[str, str], want: dict[str, str]) -> list[str]:
    return [
        f"{key}: the lock was made for {have.get(key, 'nothing')}, this base has {value}"
        for key, value in want.items()
        if have.get(key) != value
    ]


def _requirement_problems(metadata: Metadata, pins: list[Pin]) -> list[str]:
    versions: dict[str, set[str]] = {}
    for pin in pins:
        versions.setdefault(pin.name, set()).add(pin.version)
    problems = []
    for requirement in metadata.requires:
        name, specifier, _ = split_requirement(requirement)
        if name not in versions:
            problems.append(f"{name} is required and not locked")
        elif specifier.startswith("==") and "," not in specifier and "*" not in specifier:
            wrong = versions[name] - {specifier[2:].strip()}
            problems += [f"{name} is locked at {v}, required {specifier}" for v in sorted(wrong)]
    return problems


def _toolkit_problems(pins: list[Pin]) -> list[str]:
    wrong = [p for p in pins if p.name in CUDA_TOOLKIT and not p.version.startswith(CUDA_RELEASE)]
    missing = set(CUDA_TOOLKIT) - {pin.name for pin in pins}
    problems = [f"{p.name}=={p.version} is not of CUDA {CUDA_RELEASE}x" for p in wrong]
    return problems + [f"{name} is not locked" for name in sorted(missing)]
