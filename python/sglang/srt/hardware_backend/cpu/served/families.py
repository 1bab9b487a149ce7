# SPDX-License-Identifier: Apache-2.0
"""The entry classes of the four families and of their drafts, by SGLang's own declaration."""

from sglang.srt.models import (
    deepseek_v4,
    deepseek_v4_dspark,
    glm4_moe,
    kimi_k3,
    qwen3_5,
    qwen3_5_mtp,
    qwen3_5_text,
)

FILES = (deepseek_v4, deepseek_v4_dspark, glm4_moe, kimi_k3, qwen3_5, qwen3_5_mtp, qwen3_5_text)
EntryClass = [entry for file in FILES for entry in file.EntryClass]
