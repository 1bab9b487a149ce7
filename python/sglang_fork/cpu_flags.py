# SPDX-License-Identifier: Apache-2.0
"""What SGLang needs on its command line and in its environment to serve each family on a CPU.

A table of facts about the patched SGLang 0.5.23, read by the launcher (``--tiny``) and by the engine tests.
``forced`` is what the CPU engine cannot run without; ``sized`` keeps the memory pools small and may be
overridden freely. Flags are spelled as on the command line; a switch has the value ``None``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

Flags = Mapping[str, str | None]

FORCED: Flags = MappingProxyType({"--device": "cpu", "--attention-backend": "torch_native"})
SIZED: Flags = MappingProxyType(
    {
        "--max-running-requests": "8",
        "--max-total-tokens": "16384",
        "--mem-fraction-static": "0.3",
        "--watchdog-timeout": "600",
    }
)
# Of a server that the launcher starts, with the reason. It has run nothing when it starts its processes, so
# that they may be forks.
SERVER: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "SGLANG_CPU_START_METHOD": ("fork", "the server's processes share one import of SGLang"),
        "SGLANG_EXTERNAL_MODEL_PACKAGE": (
            "sglang.srt.hardware_backend.cpu.served",
            "SGLang's other model files are left alone",
        ),
        "OMP_NUM_THREADS": ("1", "products this small take less time than threads take to meet"),
    }
)


@dataclass(frozen=True)
class CpuFamily:
    """One family's flags and environment on a CPU, with the reason for each that is not common to all."""

    forced: Flags = field(default_factory=lambda: FORCED)
    sized: Flags = field(default_factory=lambda: SIZED)
    environment: Mapping[str, str] = field(default_factory=dict)
    why: Mapping[str, str] = field(default_factory=dict)


FAMILIES: Mapping[str, CpuFamily] = MappingProxyType(
    {
        "qwen3_5": CpuFamily(
            sized={**SIZED, "--max-mamba-cache-size": "48"},
            environment={"SGLANG_MAMBA_CONV_DTYPE": "float32"},
            why={
                "--max-mamba-cache-size": "the default takes gigabytes of memory for states that stay unused",
                "SGLANG_MAMBA_CONV_DTYPE": "an FP32 model needs its convolution state in FP32 as well",
            },
        ),
        "kimi_k3": CpuFamily(
            sized={**SIZED, "--max-mamba-cache-size": "48"},
            environment={"SGLANG_MAMBA_CONV_DTYPE": "float32"},
            why={
                "--max-mamba-cache-size": "the default takes gigabytes of memory for states that stay unused",
                "SGLANG_MAMBA_CONV_DTYPE": "an FP32 model needs its convolution state in FP32 as well",
            },
        ),
        "glm_moe_dsa": CpuFamily(
            forced={**FORCED, "--page-size": "64"},
            why={"--page-size": "SGLang's pool of index keys has pages of 64"},
        ),
        "deepseek_v41": CpuFamily(
            forced={**FORCED, "--attention-backend": "dsv4"},
            why={
                "--attention-backend": "the only backend that reads its compressed caches",
            },
        ),
    }
)


def engine_arguments(family: str, **overrides: object) -> dict[str, object]:
    """A family's flags as keyword arguments of ``sglang.Engine``; ``overrides`` win."""
    chosen = FAMILIES[family]
    arguments: dict[str, object] = {}
    for flag, value in {**chosen.forced, **chosen.sized}.items():
        arguments[flag.removeprefix("--").replace("-", "_")] = _typed(value)
    return {**arguments, **overrides}


def _typed(value: str | None) -> object:
    if value is None:
        return True
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value
