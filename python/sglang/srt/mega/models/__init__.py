# SPDX-License-Identifier: Apache-2.0
"""One package a model family: its slots, its step and their stock twins, its kernels, its spec."""

from __future__ import annotations

from sglang.srt.mega.device.spec import KernelSpec


def kernel_specs() -> list[KernelSpec]:
    """Every kernel of every family in the shapes and width buckets that presets serve; each listed once."""
    from sglang.srt.mega.models.qwen3_5.tactics import preset_specs

    return list(dict.fromkeys(preset_specs()))
