# SPDX-License-Identifier: Apache-2.0
"""What users of a GB10 ran into, where this machine's settings would lead to it again."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_fork.doctor.finding import Finding, error, info, warn
from sglang_fork.doctor.machine import Machine

ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def known_causes(machine: Machine) -> Iterator[Finding]:
    """Settings that break a GB10, and the report that no check of ours can settle."""
    if not any(gpu.isa == "sm_121" for gpu in machine.gpus):
        return
    for name in ALLOCATOR:
        value = machine.environ.get(name, "")
        if "expandable_segments:true" in value.replace(" ", "").lower():
            yield error(
                "gb10",
                f"{name}={value}",
                "allocations fail with NV_ERR_NO_MEMORY on unified memory, and the server refuses to start",
                f"unset {name}",
            )
    if machine.environ.get("SGLANG_NVFP4_SELF_TEST", "1").lower() in ("0", "false"):
        yield warn(
            "gb10",
            "SGLANG_NVFP4_SELF_TEST is off",
            "an NVFP4 kernel that returns zeros or noise is served, as gibberish",
            "unset it",
        )
    yield info(
        "gb10",
        "DSpark drafts of DeepSeek-V4 were reported to change greedy output at 5 draft tokens, their own "
        "depth, on 12.0 and 10.3; compare greedy tokens with DISABLE_MTP=1 before you trust one",
    )
