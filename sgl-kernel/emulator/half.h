// SPDX-License-Identifier: Apache-2.0
// Emulator side of common/half.cuh.
#pragma once

#include "convert.h"
#include "types.h"

namespace mega {

MEGA_DEVICE u32 pack_half(float low, float high) {
  return emulator::float_to_f16(low) | static_cast<u32>(emulator::float_to_f16(high)) << 16;
}

template <u32 selector>
MEGA_DEVICE u32 pick_bytes(u32 a, u32 b) {
  const u64 both = a | static_cast<u64>(b) << 32;
  u32 word = 0;
  for (int i = 0; i < 4; ++i) word |= static_cast<u32>(both >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
  return word;
}

}  // namespace mega
