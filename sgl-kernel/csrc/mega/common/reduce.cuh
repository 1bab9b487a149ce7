// SPDX-License-Identifier: Apache-2.0
// Warp-wide exchange and reductions. Every lane of the warp takes part and every lane gets the result.
#pragma once
#include "common/types.cuh"

#if !defined(__CUDACC__) && !defined(__CUDACC_RTC__)
#include "emulator/reduce.h"
#else

namespace mega {

MEGA_DEVICE float shuffle_xor(float v, int mask) { return __shfl_xor_sync(~0u, v, mask); }
MEGA_DEVICE float shuffle(float v, int lane) { return __shfl_sync(~0u, v, lane); }
MEGA_DEVICE u32 shuffle(u32 v, int lane) { return __shfl_sync(~0u, v, lane); }
MEGA_DEVICE u32 warp_max(u32 v) {
  u32 r;
  asm volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(r) : "r"(v));
  return r;
}
MEGA_DEVICE u32 warp_ballot(bool predicate) { return __ballot_sync(~0u, predicate); }
MEGA_DEVICE int count_bits(u32 v) { return __popc(v); }
MEGA_DEVICE int lowest_bit(u32 v) { return __ffs(v) - 1; }
MEGA_DEVICE void warp_sync() { __syncwarp(); }

}  // namespace mega
#endif

namespace mega {

// Sums over groups of `width` neighbouring lanes (a power of two).
template <int width = 32>
MEGA_DEVICE float warp_sum(float v) {
  MEGA_UNROLL
  for (int offset = width / 2; offset; offset /= 2) v += shuffle_xor(v, offset);
  return v;
}

template <int width = 32>
MEGA_DEVICE float warp_max_float(float v) {
  MEGA_UNROLL
  for (int offset = width / 2; offset; offset /= 2) v = fmaxf(v, shuffle_xor(v, offset));
  return v;
}

}  // namespace mega
