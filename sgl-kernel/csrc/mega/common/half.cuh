// SPDX-License-Identifier: Apache-2.0
// fp16 pairs and bytes picked from two words: what fragments of narrow formats are assembled from.
#pragma once
#include "common/types.cuh"

#if !defined(__CUDACC__) && !defined(__CUDACC_RTC__)
#include "emulator/half.h"
#else

namespace mega {

// Two fp32 to fp16x2, low half first, to nearest even.
MEGA_DEVICE u32 pack_half(float low, float high) {
  u32 word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

// Byte i of the result is byte (selector >> 4 i) & 7 of the eight bytes of b:a, a the low word.
template <u32 selector>
MEGA_DEVICE u32 pick_bytes(u32 a, u32 b) {
  return __byte_perm(a, b, selector);
}

}  // namespace mega
#endif
