// SPDX-License-Identifier: Apache-2.0
// Emulator side of common/reduce.cuh: warp-wide exchange, through which lanes also synchronise.
#pragma once

#include <bit>

#include "types.h"

namespace emulator {

template <class T>
inline uint64_t word_of(T value) {
  static_assert(sizeof(T) <= 8);
  uint64_t word = 0;
  std::memcpy(&word, &value, sizeof value);
  return word;
}

template <class T>
inline T value_of(uint64_t word) {
  T value;
  std::memcpy(&value, &word, sizeof value);
  return value;
}

inline const WarpExchange& exchange(uint32_t mask, WarpOp op, uint64_t word) {
  const WarpArrival arrival = warp_arrive(mask, op, word, nullptr, 0);
  if (arrival.last) {
    warp_release(mask);
  } else {
    warp_wait(mask);
  }
  return *arrival.exchange;
}

inline unsigned lane() { return self->linear & 31; }

// `source` outside the segment of `width` lanes leaves the lane's own value.
template <class T>
inline T shuffle_from(uint32_t mask, T value, int source, bool valid) {
  const WarpExchange& all = exchange(mask, WarpOp::shuffle, word_of(value));
  return valid ? value_of<T>(all.values[source & 31]) : value;
}

}  // namespace emulator

template <class T>
inline T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const int segment = static_cast<int>(emulator::lane()) & ~(width - 1);
  return emulator::shuffle_from(mask, value, segment + (source & (width - 1)), true);
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
  const int lane = static_cast<int>(emulator::lane()), source = lane ^ bits;
  return emulator::shuffle_from(mask, value, source, source < (lane & ~(width - 1)) + width);
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = static_cast<int>(emulator::lane()), source = lane - static_cast<int>(delta);
  return emulator::shuffle_from(mask, value, source, source >= (lane & ~(width - 1)));
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = static_cast<int>(emulator::lane()), source = lane + static_cast<int>(delta);
  return emulator::shuffle_from(mask, value, source, source < (lane & ~(width - 1)) + width);
}
inline unsigned __ballot_sync(unsigned mask, bool predicate) {
  const auto& all = emulator::exchange(mask, emulator::WarpOp::vote, predicate);
  unsigned result = 0;
  for (int lane = 0; lane < 32; ++lane)
    result |= static_cast<unsigned>((all.present >> lane & 1) && all.values[lane]) << lane;
  return result;
}
inline int __any_sync(unsigned mask, bool predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, bool predicate) { return __ballot_sync(mask, !predicate) == 0; }
inline void __syncwarp(unsigned mask = ~0u) { emulator::exchange(mask, emulator::WarpOp::sync, 0); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __ffs(unsigned x) { return x ? std::countr_zero(x) + 1 : 0; }
inline int __clz(unsigned x) { return std::countl_zero(x); }

namespace mega {

MEGA_DEVICE float shuffle_xor(float v, int mask) { return __shfl_xor_sync(~0u, v, mask); }
MEGA_DEVICE float shuffle(float v, int lane) { return __shfl_sync(~0u, v, lane); }
MEGA_DEVICE u32 shuffle(u32 v, int lane) { return __shfl_sync(~0u, v, lane); }
MEGA_DEVICE u32 warp_max(u32 v) {
  const auto& all = emulator::exchange(~0u, emulator::WarpOp::reduce, v);
  u32 result = 0;
  for (int lane = 0; lane < 32; ++lane) {
    if (all.present >> lane & 1)
      result = result < all.values[lane] ? static_cast<u32>(all.values[lane]) : result;
  }
  return result;
}
MEGA_DEVICE u32 warp_ballot(bool predicate) { return __ballot_sync(~0u, predicate); }
MEGA_DEVICE int count_bits(u32 v) { return __popc(v); }
MEGA_DEVICE int lowest_bit(u32 v) { return __ffs(v) - 1; }
MEGA_DEVICE void warp_sync() { __syncwarp(); }

}  // namespace mega
