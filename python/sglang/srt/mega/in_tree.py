# SPDX-License-Identifier: Apache-2.0
"""The megakernel specs of this tree.

They serve when no installed plugin registered a spec for the architecture: an installed plugin wins,
architecture by architecture, so that a newer kernel package takes over without a change here.
"""

from __future__ import annotations

from sglang.kernels.plugin_kernels.nvidia.spec import register_in_tree

SPECS: dict[str, str] = {
    "Qwen3_5MoeForCausalLM": "sglang.srt.mega.models.qwen3_5.spec:SPEC",
    "Qwen3_5MoeForConditionalGeneration": "sglang.srt.mega.models.qwen3_5.spec:SPEC",
}


def register_all() -> None:
    """Register every spec of this tree; idempotent."""
    for architecture, path in SPECS.items():
        register_in_tree(architecture=architecture, path=path)
