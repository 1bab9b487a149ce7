// SPDX-License-Identifier: Apache-2.0
// Emulator side of common/memory.cuh.
#pragma once

#include "types.h"

namespace mega {

MEGA_DEVICE uint4 load_stream(const void* address) { return *static_cast<const uint4*>(address); }

MEGA_DEVICE uint4 load_shared_by_step(const void* address) { return *static_cast<const uint4*>(address); }

MEGA_DEVICE uint2 load_stream_pair(const void* address) { return *static_cast<const uint2*>(address); }
MEGA_DEVICE uint2 load_step_pair(const void* address) { return *static_cast<const uint2*>(address); }

MEGA_DEVICE u32 load_step_word(const void* address) { return *static_cast<const u32*>(address); }

MEGA_DEVICE float load_step_float(const float* address) { return *address; }

MEGA_DEVICE void store_vector(void* address, uint4 v) { *static_cast<uint4*>(address) = v; }

MEGA_DEVICE void store_pair(void* address, uint2 v) { *static_cast<uint2*>(address) = v; }

MEGA_DEVICE u32 load_acquire(const u32* address) {
  emulator::observe(address, sizeof *address);
  const u32 value = __atomic_load_n(address, __ATOMIC_ACQUIRE);
  emulator::note_load(address, value);
  return value;
}

MEGA_DEVICE void store_release(u32* address, u32 value) {
  emulator::fence();
  __atomic_store_n(address, value, __ATOMIC_RELEASE);
  emulator::note_store(address);
}

MEGA_DEVICE u32 atomic_add_acq_rel(u32* address, u32 value) {
  emulator::fence();
  const u32 old = __atomic_fetch_add(address, value, __ATOMIC_ACQ_REL);
  emulator::note_store(address);
  return old;
}

MEGA_DEVICE void prefetch_l2(const void*, u32) {}

}  // namespace mega
