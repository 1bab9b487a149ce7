# SPDX-License-Identifier: Apache-2.0
"""RMSNorm of a decode step's rows, one block a row, in the CuTe DSL.

Constants: HIDDEN (channels, a multiple of 8), STRIDE (elements between rows of x), EPSILON.
Numerics: fp32, rounded to bf16 once. The weight is requested before the dependency wait.
"""

from __future__ import annotations

import cuda.bindings.driver as driver
import cutlass
from cutlass import cute
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor

THREADS, VECTOR = 256, 8
MOST_ROWS = 1 << 16  # of a layout that no code depends on


@cute.kernel
def rms_norm(x: cute.Tensor, weight: cute.Tensor, out: cute.Tensor, epsilon: cutlass.Constexpr):  # type: ignore[no-untyped-def]
    """x, out: [rows, HIDDEN] bf16, x strided in rows; weight: [HIDDEN] bf16. Grid: (rows)."""
    thread, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    hidden = cute.size(weight)
    turns = cutlass.const_expr(cute.ceil_div(hidden, VECTOR * THREADS))
    inputs = cute.zipped_divide(x[row, None], (VECTOR,))
    gains = cute.zipped_divide(weight, (VECTOR,))
    outputs = cute.zipped_divide(out[row, None], (VECTOR,))
    gain = cute.make_rmem_tensor((VECTOR, turns), cutlass.BFloat16)
    value = cute.make_rmem_tensor((VECTOR, turns), cutlass.Float32)

    cute.arch.griddepcontrol_launch_dependents()
    for turn in cutlass.range_constexpr(turns):
        place = thread + turn * THREADS
        if place < hidden // VECTOR:
            gain[None, turn].store(gains[None, place].load())
    cute.arch.griddepcontrol_wait()

    square = cutlass.Float32(0.0)
    for turn in cutlass.range_constexpr(turns):
        place = thread + turn * THREADS
        if place < hidden // VECTOR:
            value[None, turn].store(inputs[None, place].load().to(cutlass.Float32))
            for i in cutlass.range_constexpr(VECTOR):
                square += value[i, turn] * value[i, turn]
    sums = cutlass.memory.SmemAllocator().allocate_tensor(
        cutlass.Float32, cute.make_layout(THREADS // 32), byte_alignment=16
    )
    square = cute.arch.warp_reduction_sum(square)
    if thread % 32 == 0:
        sums[thread // 32] = square
    cute.arch.sync_threads()
    total = cutlass.Float32(0.0)
    for warp in cutlass.range_constexpr(THREADS // 32):
        total += sums[warp]
    inverse = cute.math.rsqrt(total / hidden + epsilon)
    for turn in cutlass.range_constexpr(turns):
        place = thread + turn * THREADS
        if place < hidden // VECTOR:
            normed = cute.make_rmem_tensor((VECTOR,), cutlass.BFloat16)
            for i in cutlass.range_constexpr(VECTOR):
                product = value[i, turn] * inverse * gain[i, turn].to(cutlass.Float32)
                normed[i] = product.to(cutlass.BFloat16)
            outputs[None, place].store(normed.load())


@cute.jit
def launch(  # type: ignore[no-untyped-def]
    x: cute.Tensor,
    weight: cute.Tensor,
    out: cute.Tensor,
    epsilon: cutlass.Constexpr,
    stream: driver.CUstream,
):
    rms_norm.set_name_prefix("rms_norm")
    rms_norm(x, weight, out, epsilon).launch(
        grid=[x.shape[0], 1, 1], block=[THREADS, 1, 1], stream=stream, use_pdl=True
    )


def build(arch: str, HIDDEN: int, STRIDE: int, EPSILON: float) -> bytes:
    """The machine code for one architecture, which holds this kernel alone."""
    rows = (MOST_ROWS, HIDDEN)
    x = make_fake_tensor(cutlass.BFloat16, rows, stride=(STRIDE, 1), assumed_align=16)
    weight = make_fake_tensor(cutlass.BFloat16, (HIDDEN,), stride=(1,), assumed_align=16)
    out = make_fake_tensor(cutlass.BFloat16, rows, stride=(HIDDEN, 1), assumed_align=16)
    options = f"--gpu-arch {arch} --keep-cubin --dump-dir ."  # scratch: build_cubin changes there
    compiled = cute.compile(launch, x, weight, out, EPSILON, make_fake_stream(), options=options)
    return bytes(compiled.__cubin__)
