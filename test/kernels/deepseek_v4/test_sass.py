# SPDX-License-Identifier: Apache-2.0
"""What the machine code of V4.1's hyper-connection kernels holds: weights ahead of the wait, no spills."""

from __future__ import annotations

import pytest

from sglang.srt.mega.device.cuda_compile import compile_kernel
from sglang.srt.mega.device.sass import facts
from sglang.srt.mega.device.spec import ARCHITECTURES
from sglang.srt.mega.models.deepseek_v4.tactics import BUCKETS, V41_FLASH, kernel_spec


@pytest.mark.parametrize("bucket", BUCKETS)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_projection_is_asked_for_before_the_wait(arch: str, bucket: int) -> None:
    """A lane's share of 24 x 4 SLICE fp32 weights: six loads of 16 bytes."""
    compiled = compile_kernel(kernel_spec("mhc_post", V41_FLASH, bucket), arch)
    found = facts(compiled.cubin, "mhc_post")
    assert found.waits == 1 and found.triggers == 1, found
    assert found.weight_loads_before_wait == 6, found
    assert found.narrow_loads == 0 and found.tensor >= 12, found
    assert compiled.usage.spill_bytes == 0 and found.local == 0, (compiled.usage, found)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_norm_weight_is_asked_for_before_the_wait(arch: str) -> None:
    compiled = compile_kernel(kernel_spec("mhc_finish", V41_FLASH, BUCKETS[0]), arch)
    found = facts(compiled.cubin, "mhc_finish")
    assert found.waits == 1 and found.triggers == 1, found
    assert found.weight_loads_before_wait == 3, found
    assert compiled.usage.spill_bytes == 0 and found.local == 0, (compiled.usage, found)
