// SPDX-License-Identifier: Apache-2.0
// Number formats, bit for bit as the GPU converts them: round to nearest even, saturation and NaN included.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace emulator {

inline float float_of_bits(uint32_t bits) { return std::bit_cast<float>(bits); }
inline uint32_t bits_of_float(float value) { return std::bit_cast<uint32_t>(value); }

inline float bf16_to_float(uint16_t bits) { return float_of_bits(static_cast<uint32_t>(bits) << 16); }

// cvt.rn.bf16.f32: every NaN becomes 0x7fff.
inline uint16_t float_to_bf16(float value) {
  const uint32_t bits = bits_of_float(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

// A small binary format without infinities unless kInfinity: exponent and mantissa widths, exponent bias.
template <int kExponent, int kMantissa, int kBias>
struct Format {
  static constexpr int kBits = 1 + kExponent + kMantissa;
  static constexpr uint32_t kMagnitude = (1u << (kBits - 1)) - 1;

  static float decode_finite(uint32_t bits) {
    const uint32_t exponent = (bits & kMagnitude) >> kMantissa;
    const uint32_t mantissa = bits & ((1u << kMantissa) - 1);
    const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), 1 - kBias - kMantissa)
                                          : std::ldexp(static_cast<float>(mantissa | 1u << kMantissa),
                                                       static_cast<int>(exponent) - kBias - kMantissa);
    return bits >> (kBits - 1) & 1 ? -magnitude : magnitude;
  }

  // The magnitude rounded to nearest even, as code; may exceed the format's largest code.
  static uint32_t round_magnitude(float value) {
    const uint32_t bits = bits_of_float(value) & 0x7fffffffu;
    const int exponent =
        static_cast<int>(bits >> 23) - 127;  // value = 1.m x 2^exponent, or an fp32 subnormal
    uint64_t significand = bits & 0x7fffffu;
    if (bits >> 23) significand |= 0x800000u;
    const int effective = bits >> 23 ? exponent : -126;
    // The weight of the target's last place is 2^place; subnormals share the smallest exponent's place.
    const int smallest = 1 - kBias;
    const int base = effective < smallest ? smallest : effective;
    const int shift = (base - kMantissa) - (effective - 23);  // bits to drop
    uint64_t kept, half, rest;
    if (shift > 40) return 0;
    if (shift <= 0) {
      kept = significand << -shift;
      half = rest = 0;
    } else {
      kept = significand >> shift;
      half = significand >> (shift - 1) & 1;
      rest = significand & ((uint64_t{1} << (shift - 1)) - 1);
    }
    if (half && (rest || (kept & 1))) ++kept;
    // kept has the hidden bit when the number is normal: adding works for both cases and carries into the
    // exponent.
    const uint32_t biased = static_cast<uint32_t>(base - smallest);
    return static_cast<uint32_t>(kept) + (biased << kMantissa);
  }
};

using E4M3 = Format<4, 3, 7>;
using E5M2 = Format<5, 2, 15>;
using E2M1 = Format<2, 1, 1>;
using F16 = Format<5, 10, 15>;

inline float f16_to_float(uint16_t bits) {
  if ((bits & 0x7c00) == 0x7c00) {
    return float_of_bits((bits & 0x8000u) << 16 | 0x7f800000u | (bits & 0x3ffu) << 13);
  }
  return F16::decode_finite(bits);
}

// cvt.rn.f16.f32: overflow becomes infinity, every NaN 0x7fff.
inline uint16_t float_to_f16(float value) {
  if (std::isnan(value)) return 0x7fff;
  const uint32_t sign = bits_of_float(value) >> 16 & 0x8000;
  const uint32_t code = std::isinf(value) ? 0x7c00 : F16::round_magnitude(value);
  return static_cast<uint16_t>(sign | (code > 0x7c00 ? 0x7c00 : code));
}

inline float e4m3_to_float(uint8_t bits) {
  return (bits & 0x7f) == 0x7f ? float_of_bits(0x7fffffffu) : E4M3::decode_finite(bits);
}

// cvt.rn.satfinite.e4m3x2.f32: beyond 448 saturates, NaN is 0x7f.
inline uint8_t float_to_e4m3(float value) {
  if (std::isnan(value)) return 0x7f;
  const uint32_t sign = bits_of_float(value) >> 24 & 0x80;
  const uint32_t code = std::isinf(value) ? 0x7e : E4M3::round_magnitude(value);
  return static_cast<uint8_t>(sign | (code > 0x7e ? 0x7e : code));
}

inline float e5m2_to_float(uint8_t bits) { return f16_to_float(static_cast<uint16_t>(bits << 8)); }

// cvt.rn.satfinite.e5m2x2.f32: beyond 57344 saturates, NaN is 0x7f.
inline uint8_t float_to_e5m2(float value) {
  if (std::isnan(value)) return 0x7f;
  const uint32_t sign = bits_of_float(value) >> 24 & 0x80;
  const uint32_t code = std::isinf(value) ? 0x7b : E5M2::round_magnitude(value);
  return static_cast<uint8_t>(sign | (code > 0x7b ? 0x7b : code));
}

inline float e2m1_to_float(uint8_t nibble) { return E2M1::decode_finite(nibble & 15); }

// cvt.rn.satfinite.e2m1x2.f32: beyond 6 saturates, NaN is +6.
inline uint8_t float_to_e2m1(float value) {
  if (std::isnan(value)) return 7;
  const uint32_t sign = bits_of_float(value) >> 28 & 8;
  const uint32_t code = std::isinf(value) ? 7 : E2M1::round_magnitude(value);
  return static_cast<uint8_t>(sign | (code > 7 ? 7 : code));
}

// UE8M0, a power of two: 2^(bits - 127); 255 is NaN.
inline float e8m0_to_float(uint8_t bits) {
  if (bits == 255) return float_of_bits(0x7fffffffu);
  return bits == 0 ? float_of_bits(0x00400000u) : float_of_bits(static_cast<uint32_t>(bits) << 23);
}

// cvt.rp.satfinite.ue8m0x2.f32: the magnitude rounded up to a power of two.
inline uint8_t float_to_e8m0_up(float value) {
  if (std::isnan(value)) return 255;
  const uint32_t bits = bits_of_float(value) & 0x7fffffffu;
  if (bits >= 0x7f000000u) return 254;
  const uint32_t exponent = bits >> 23, mantissa = bits & 0x7fffffu;
  if (exponent == 0) return mantissa > 0x400000u ? 1 : 0;
  return static_cast<uint8_t>(exponent + (mantissa != 0));
}

}  // namespace emulator
