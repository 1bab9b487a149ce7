# SPDX-License-Identifier: Apache-2.0
"""The megakernel specs of this tree.

They serve when no installed plugin registered a spec for the architecture: an installed plugin wins,
architecture by architecture, so that a newer kernel package takes over without a change here.
"""

from __future__ import annotations

# Where they are served; on others their kernels are assembled and have never run.
ISAS = frozenset({"sm_90", "emulated"})
SPECS: dict[str, str] = {
    "DeepseekV41ForCausalLM": "sglang.srt.mega.models.deepseek_v4.spec:SPEC",
    "DeepseekV4ForCausalLM": "sglang.srt.mega.models.deepseek_v4.spec:SPEC",
    "GlmMoeDsaForCausalLM": "sglang.srt.mega.models.glm_moe_dsa.spec:SPEC",
    "KimiK3ForConditionalGeneration": "sglang.srt.mega.models.kimi_k3.spec:SPEC",
    "KimiK3LinearForCausalLM": "sglang.srt.mega.models.kimi_k3.spec:SPEC",
    "Qwen3_5MoeForCausalLM": "sglang.srt.mega.models.qwen3_5.spec:SPEC",
    "Qwen3_5MoeForConditionalGeneration": "sglang.srt.mega.models.qwen3_5.spec:SPEC",
}


def register_all() -> None:
    """Register every spec of this tree; idempotent."""
    from sglang.kernels.plugin_kernels.nvidia.spec import register_in_tree

    for architecture, path in SPECS.items():
        register_in_tree(architecture=architecture, path=path)
