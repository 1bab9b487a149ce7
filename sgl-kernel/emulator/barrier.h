// SPDX-License-Identifier: Apache-2.0
// Emulator side of common/barrier.cuh.
#pragma once

#include "types.h"

inline void __syncthreads() { emulator::block_barrier(0, 0); }

namespace mega {

MEGA_DEVICE void block_sync() { emulator::block_barrier(0, 0); }
MEGA_DEVICE void named_sync(int id, int threads) {
  emulator::block_barrier(static_cast<unsigned>(id), static_cast<unsigned>(threads));
}

struct MBarrier {
  u64 word;
};

namespace detail {
MEGA_DEVICE uint64_t* word_of(MBarrier& b) { return reinterpret_cast<uint64_t*>(&b.word); }
}  // namespace detail

MEGA_DEVICE void mbarrier_init(MBarrier& b, u32 arrivals) {
  emulator::mbarrier_init(detail::word_of(b), arrivals);
}
MEGA_DEVICE void mbarrier_arrive(MBarrier& b) { emulator::mbarrier_arrive(detail::word_of(b), 1, 0); }
MEGA_DEVICE void mbarrier_expect(MBarrier& b, u32 bytes) {
  emulator::mbarrier_arrive(detail::word_of(b), 1, bytes);
}
MEGA_DEVICE void mbarrier_wait(MBarrier& b, u32 parity) {
  emulator::mbarrier_wait(detail::word_of(b), parity);
}
MEGA_DEVICE void bulk_copy(void* shared, const void* global, u32 bytes, MBarrier& b) {
  emulator::copy_bulk_in(shared, global, bytes, detail::word_of(b));
}
MEGA_DEVICE void proxy_fence() {}

MEGA_DEVICE void spin_pause() { emulator::poll("memory"); }

}  // namespace mega
