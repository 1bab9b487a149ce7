// SPDX-License-Identifier: Apache-2.0
// Weight formats to fp16 pairs in registers. sm_90 has no e2m1 conversion: sign and magnitude bits are placed
// in an fp16, whose value is the e2m1 value times 2^-14, subnormals included; the caller folds 2^14 into the
// block scale.
#pragma once
#include "common/types.cuh"

#if !defined(__CUDACC__) && !defined(__CUDACC_RTC__)
#include "emulator/dequant.h"
#else

namespace mega {

// Two e4m3 bytes (low 16 bits) to fp16x2, exact.
MEGA_DEVICE u32 e4m3x2_to_f16x2(u32 bytes) {
  u32 word;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(word) : "h"(static_cast<u16>(bytes)));
  return word;
}

MEGA_DEVICE u32 multiply_f16x2(u32 a, u32 b) {
  u32 word;
  asm("mul.f16x2 %0, %1, %2;" : "=r"(word) : "r"(a), "r"(b));
  return word;
}

}  // namespace mega
#endif

namespace mega {

// Eight e2m1 nibbles (nibble i in bits 4i..4i+3) to four fp16x2 of value x 2^-14, in the order (0, 4), (1,
// 5), (2, 6), (3, 7).
MEGA_DEVICE void e2m1x8_to_f16x2(u32 nibbles, u32 (&out)[4]) {
  MEGA_UNROLL
  for (int i = 0; i < 4; ++i) {
    u32 q = nibbles >> (4 * i);
    out[i] = ((q & 0x00080008u) << 12) | ((q & 0x00070007u) << 9);
  }
}

}  // namespace mega
