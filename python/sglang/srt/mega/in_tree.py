# SPDX-License-Identifier: Apache-2.0
"""The megakernel specs of this tree.

They serve when no installed plugin registered a spec for the architecture: an installed plugin wins,
architecture by architecture, so that a newer kernel package takes over without a change here.
"""

from __future__ import annotations

from sglang.kernels.plugin_kernels.nvidia.spec import register_in_tree

SPECS: dict[str, str] = {}


def register_all() -> None:
    """Register every spec of this tree; idempotent."""
    for architecture, path in SPECS.items():
        register_in_tree(architecture=architecture, path=path)
