// SPDX-License-Identifier: Apache-2.0
// Emulator side of common/dequant.cuh.
#pragma once

#include "convert.h"
#include "types.h"

namespace mega {

MEGA_DEVICE u32 e4m3x2_to_f16x2(u32 bytes) {
  const auto half = [](u32 byte) -> u32 {
    const auto code = static_cast<uint8_t>(byte);
    return (code & 0x7f) == 0x7f ? 0x7fffu : emulator::float_to_f16(emulator::e4m3_to_float(code));
  };
  return half(bytes) | half(bytes >> 8) << 16;
}

MEGA_DEVICE u32 multiply_f16x2(u32 a, u32 b) {
  const auto product = [&](int shift) -> u32 {
    const auto x = emulator::f16_to_float(static_cast<uint16_t>(a >> shift));
    const auto y = emulator::f16_to_float(static_cast<uint16_t>(b >> shift));
    return emulator::float_to_f16(x * y);  // the fp32 product of two fp16 is exact: one rounding
  };
  return product(0) | product(16) << 16;
}

}  // namespace mega
