// SPDX-License-Identifier: Apache-2.0
// Warp-wide tensor-core products, D = A B + D with A 16 x 16 (row), B 16 x 8 (column), D 16 x 8 in fp32.
// Lane 4g + t holds A rows g and g + 8, B column g, and D (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1).
// a0: row g, k 2t..2t+1; a1: row g + 8; a2: row g, k 2t+8..2t+9; a3: row g + 8; b0: k 2t..2t+1; b1: k
// 2t+8..2t+9.
#pragma once
#include "common/types.cuh"

#if !defined(__CUDACC__) && !defined(__CUDACC_RTC__)
#include "emulator/mma.h"
#else

namespace mega {

MEGA_DEVICE void mma_bf16(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

MEGA_DEVICE void mma_f16(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, "
      "%1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Four 8 x 8 matrices of 16-bit elements from shared memory; lane i gives the address of row i % 8 of matrix
// i / 8.
MEGA_DEVICE void ldmatrix_x4(u32 (&r)[4], const void* shared_row) {
  u32 address = static_cast<u32>(__cvta_generic_to_shared(shared_row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// The transpose of an 8 x 8 matrix of 16-bit elements; lane 4g + t holds row g, columns 2t and 2t + 1.
MEGA_DEVICE u32 transpose(u32 pair) {
  u32 r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(pair));
  return r;
}

}  // namespace mega
#endif
