# SPDX-License-Identifier: Apache-2.0
"""What the machine code of Qwen3.5's kernels holds: loads ahead of the wait, their width, no spills."""

from __future__ import annotations

import pytest

from sglang.srt.mega.device.cuda_compile import compile_kernel
from sglang.srt.mega.device.sass import facts
from sglang.srt.mega.models.qwen3_5.shape import QWEN35_35B_A3B, QWEN35_397B_TP8, Shape
from sglang.srt.mega.models.qwen3_5.tactics import kernel_spec

# Entry: 16-byte loads of weights or state that must stand ahead of the wait, and matrix instructions,
# at least, for (397B at TP8, 35B-A3B) and one row. moe_up knows its experts only after the wait.
FACTS = {
    "gdn_front": ((16, 32), (8, 16)),
    "gdn_step": ((4, 0), (8, 0)),
    "gdn_out": ((8, 8), (16, 32)),
    "attn_front": ((16, 32), (16, 16)),
    "attn_decode": ((16, 16), (16, 16)),
    "attn_merge": ((0, 0), (0, 0)),
    "attn_out": ((8, 8), (16, 32)),
    "moe_route": ((32, 32), (16, 16)),
    "moe_up": ((0, 32), (0, 16)),
    "moe_down": ((8, 8), (16, 32)),
}


@pytest.mark.parametrize("place", [0, 1], ids=["397B-TP8", "35B-A3B"])
@pytest.mark.parametrize("entry", FACTS)
def test_loads_stand_before_the_wait_and_nothing_spills(entry: str, place: int) -> None:
    loads, products = FACTS[entry][place]
    compiled = compile_kernel(kernel_spec(entry, (QWEN35_397B_TP8, QWEN35_35B_A3B)[place], 1), "sm_90a")
    found = facts(compiled.cubin, entry)
    assert found.waits == 1 and found.triggers == 1, found
    assert found.weight_loads_before_wait >= loads, found
    assert found.tensor >= products, found
    assert compiled.usage.spill_bytes == 0 and found.local == 0, (compiled.usage, found)


@pytest.mark.parametrize("arch", ["sm_100a", "sm_121a"])
@pytest.mark.parametrize(
    ("entry", "shape", "rows"),
    [("moe_up", QWEN35_397B_TP8, 8), ("moe_down", QWEN35_397B_TP8, 1), ("gdn_front", QWEN35_35B_A3B, 1)],
    ids=["moe_up", "moe_down", "gdn_front"],
)
def test_blackwell_gets_the_registers_that_it_needs(entry: str, shape: Shape, rows: int, arch: str) -> None:
    """These spilled there when they asked for as many resident blocks as on Hopper."""
    usage = compile_kernel(kernel_spec(entry, shape, rows), arch).usage
    assert usage.spill_bytes == 0 and usage.stack_bytes == 0, usage


def test_the_count_sees_a_sunk_load() -> None:
    """moe_up loads weights, but only after its wait: counted before it, they are none."""
    spec = kernel_spec("moe_up", QWEN35_397B_TP8, 1)
    found = facts(compile_kernel(spec, "sm_90a").cubin, "moe_up")
    assert found.weight_loads_before_wait == 0 and found.wide_loads >= 32, found
