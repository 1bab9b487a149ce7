# SPDX-License-Identifier: Apache-2.0
"""Where the kernel sources and the CUDA headers lie, and the exact text that a kernel is compiled from."""

from __future__ import annotations

import os
import re
import sysconfig
from functools import cache
from pathlib import Path

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


@cache
def source_root() -> Path:
    """The folder ``sgl-kernel`` of a checkout, or its installed copy ``sglang/srt/mega/_src``."""
    here = Path(__file__).resolve()
    for candidate in (here.parents[1] / "_src", here.parents[5] / "sgl-kernel"):
        if (candidate / "csrc" / "mega" / "common" / "types.cuh").is_file():
            return candidate
    raise FileNotFoundError(
        f"no kernel sources beside {here.parents[1]}: install the wheel that ./sglang.sh build makes, "
        "or run from a checkout"
    )


def kernel_root() -> Path:
    """The folder that kernel sources and their ``#include`` lines are relative to."""
    return source_root() / "csrc" / "mega"


@cache
def cuda_include() -> Path:
    """The folder of ``cuda_bf16.h``: ``CUDA_HOME``'s, this environment's packages, ``/usr/local/cuda``."""
    packages = Path(sysconfig.get_paths()["purelib"])
    candidates = [Path(os.environ["CUDA_HOME"]) / "include"] if os.environ.get("CUDA_HOME") else []
    candidates += [packages / "nvidia" / "cu13" / "include", Path("/usr/local/cuda/include")]
    for candidate in candidates:
        if (candidate / "cuda_bf16.h").is_file():
            return candidate
    tried = ", ".join(map(str, candidates))
    raise FileNotFoundError(
        f"no CUDA headers (cuda_bf16.h) in {tried}: install cuda-toolkit[cudart,crt,cccl]"
    )


def closure(source: str) -> dict[str, str]:
    """The text of a source and of every header below ``kernel_root`` that it includes, by relative path.

    Headers of the emulator are left out: a CUDA compiler never reads them.
    """
    root = kernel_root()
    texts: dict[str, str] = {}
    pending = [source]
    while pending:
        name = pending.pop()
        if name in texts or name.startswith("emulator/"):
            continue
        texts[name] = (root / name).read_text(encoding="utf-8")
        pending += INCLUDE.findall(texts[name])
    return dict(sorted(texts.items()))
