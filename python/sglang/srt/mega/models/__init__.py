# SPDX-License-Identifier: Apache-2.0
"""One package a model family: its slots, its step and their stock twins, its kernels, its spec."""

from __future__ import annotations

from sglang.srt.mega.device.spec import KernelSpec


def kernel_specs() -> list[KernelSpec]:
    """Every kernel of every family in the shapes and width buckets that presets serve; each listed once."""
    from sglang.srt.mega.models.deepseek_v4 import tactics as deepseek_v4
    from sglang.srt.mega.models.glm_moe_dsa import tactics as glm_moe_dsa
    from sglang.srt.mega.models.qwen3_5 import tactics as qwen3_5

    families = (qwen3_5, glm_moe_dsa, deepseek_v4)
    return list(dict.fromkeys(spec for family in families for spec in family.preset_specs()))
