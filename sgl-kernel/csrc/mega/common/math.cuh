// SPDX-License-Identifier: Apache-2.0
// Elementwise arithmetic with the rounding points of the stock kernels: exp is ex2.approx, as in Triton's
// tl.exp.
#pragma once
#include "common/types.cuh"

#if !defined(__CUDACC__) && !defined(__CUDACC_RTC__)
#include "emulator/math.h"
#else

namespace mega {

MEGA_DEVICE float exp_fast(float x) { return __expf(x); }
MEGA_DEVICE float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
MEGA_DEVICE float log_fast(float x) { return __logf(x); }
MEGA_DEVICE float rsqrt_fast(float x) { return rsqrtf(x); }
MEGA_DEVICE float sqrt_exact(float x) { return sqrtf(x); }
MEGA_DEVICE float divide(float a, float b) { return __fdividef(a, b); }

MEGA_DEVICE float to_float(bf16 x) { return __bfloat162float(x); }
MEGA_DEVICE bf16 to_bf16(float x) { return __float2bfloat16(x); }

// The two bf16 halves of a 32-bit word, low half first.
MEGA_DEVICE float2 unpack(u32 word) {
  return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
}
MEGA_DEVICE u32 pack(float low, float high) {
  u32 word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
MEGA_DEVICE u32 float_bits(float x) { return __float_as_uint(x); }
MEGA_DEVICE float bits_float(u32 x) { return __uint_as_float(x); }

}  // namespace mega
#endif

namespace mega {

MEGA_DEVICE float round_bf16(float x) { return to_float(to_bf16(x)); }
MEGA_DEVICE float sigmoid(float x) { return divide(1.0f, 1.0f + exp_fast(-x)); }
MEGA_DEVICE float silu(float x) { return divide(x, 1.0f + exp_fast(-x)); }
// log(1 + exp(x)), the identity above the threshold: the form of the stock gated-delta-rule kernels.
MEGA_DEVICE float softplus(float x) { return x <= 20.0f ? log_fast(1.0f + exp_fast(x)) : x; }

}  // namespace mega
