// SPDX-License-Identifier: Apache-2.0
// Emulator side of common/math.cuh. The GPU's approximate functions differ from these in the last bits.
#pragma once

#include <cmath>

#include "convert.h"
#include "types.h"

inline float __expf(float x) { return expf(x); }
inline float __uint_as_float(unsigned x) { return emulator::float_of_bits(x); }
inline unsigned __float_as_uint(float x) { return emulator::bits_of_float(x); }
inline float __int_as_float(int x) { return emulator::float_of_bits(static_cast<unsigned>(x)); }
inline int __float_as_int(float x) { return static_cast<int>(emulator::bits_of_float(x)); }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }

template <class T>
inline T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
inline T max(T a, T b) {
  return a < b ? b : a;
}

namespace mega {

MEGA_DEVICE float exp_fast(float x) { return expf(x); }
MEGA_DEVICE float exp2_fast(float x) { return exp2f(x); }
MEGA_DEVICE float log_fast(float x) { return logf(x); }
MEGA_DEVICE float rsqrt_fast(float x) { return 1.0f / sqrtf(x); }
MEGA_DEVICE float sqrt_exact(float x) { return sqrtf(x); }
MEGA_DEVICE float divide(float a, float b) { return a / b; }

MEGA_DEVICE float to_float(bf16 x) { return emulator::bf16_to_float(x.bits); }
MEGA_DEVICE bf16 to_bf16(float x) { return {emulator::float_to_bf16(x)}; }

MEGA_DEVICE float2 unpack(u32 word) {
  return make_float2(emulator::float_of_bits(word << 16), emulator::float_of_bits(word & 0xffff0000u));
}
MEGA_DEVICE u32 pack(float low, float high) {
  return static_cast<u32>(emulator::float_to_bf16(high)) << 16 | emulator::float_to_bf16(low);
}
MEGA_DEVICE u32 float_bits(float x) { return emulator::bits_of_float(x); }
MEGA_DEVICE float bits_float(u32 x) { return emulator::float_of_bits(x); }

}  // namespace mega
