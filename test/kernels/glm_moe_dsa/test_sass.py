# SPDX-License-Identifier: Apache-2.0
"""What the machine code of GLM's sparse attention holds, on every architecture.

Everything that it reads is made by the step, so nothing can stand ahead of the wait; what counts is that all
chosen tokens of a block are asked for by bulk copies, and that products are the tensor core's.
"""

from __future__ import annotations

import pytest

from sglang.srt.mega.device.cuda_compile import compile_kernel
from sglang.srt.mega.device.sass import facts
from sglang.srt.mega.device.spec import ARCHITECTURES, SHARED_LIMIT
from sglang.srt.mega.models.glm_moe_dsa.tactics import STAGES, STATIC_SHARED, Shape, kernel_spec

PRODUCTS = 32 + 4 + 32  # of eight heads and 16 tokens: latent keys, rotated keys, values


@pytest.mark.parametrize(
    ("arch", "heads", "fp8"),
    [*((arch, 8, True) for arch in ARCHITECTURES), ("sm_90a", 8, False), ("sm_121a", 8, False)],
)
def test_decode(arch: str, heads: int, fp8: bool) -> None:
    shape = Shape(heads, 2048, fp8, SHARED_LIMIT[arch])
    compiled = compile_kernel(kernel_spec("mla_decode", shape), arch)
    assert compiled.usage.shared_bytes <= STATIC_SHARED
    assert compiled.usage.shared_bytes + shape.staged_bytes <= SHARED_LIMIT[arch], (shape, compiled.usage)
    found = facts(compiled.cubin, "mla_decode")
    assert found.waits == 1 and found.triggers == 1, found
    assert found.bulk_copies >= STAGES, found
    assert found.tensor >= PRODUCTS, found
    assert compiled.usage.spill_bytes == 0 and found.local == 0, (compiled.usage, found)


def test_the_form_follows_the_shared_memory() -> None:
    assert [Shape(8, 2048, fp8).warps for fp8 in (True, False)] == [8, 4]
    assert [Shape(8, 2048, fp8, SHARED_LIMIT["sm_121a"]).warps for fp8 in (True, False)] == [4, 2]
    with pytest.raises(ValueError, match="needs more than 49152 bytes of shared memory"):
        Shape(8, 2048, True, 48 << 10)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_merge_reads_16_bytes_a_lane(arch: str) -> None:
    compiled = compile_kernel(kernel_spec("mla_merge", Shape(8, 2048, True)), arch)
    found = facts(compiled.cubin, "mla_merge")
    assert found.waits == 1 and found.triggers == 1, found
    assert found.wide_loads >= 8, found
    assert compiled.usage.spill_bytes == 0 and found.local == 0, (compiled.usage, found)
