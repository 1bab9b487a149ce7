// SPDX-License-Identifier: Apache-2.0
// Emulator side of common/system.cuh. Stores may be performed late and, word by word, in any order.
#pragma once

#include "types.h"

namespace mega {

MEGA_DEVICE u32 load_system_word(const u32* address) { return __atomic_load_n(address, __ATOMIC_RELAXED); }

MEGA_DEVICE uint4 load_system(const void* address) {
  emulator::observe(address, 16);
  const u32* words = static_cast<const u32*>(address);
  const uint4 v = make_uint4(load_system_word(words), load_system_word(words + 1),
                             load_system_word(words + 2), load_system_word(words + 3));
  emulator::note_load(address, static_cast<u64>(v.y) << 32 | v.x);
  return v;
}

MEGA_DEVICE void store_system(u32* address, u32 v) { emulator::store_late(address, &v, sizeof v); }

MEGA_DEVICE void store_system(void* address, uint4 v) {
  u32* words = static_cast<u32*>(address);
  store_system(words, v.x);
  store_system(words + 1, v.y);
  store_system(words + 2, v.z);
  store_system(words + 3, v.w);
}

MEGA_DEVICE void fence_system() { emulator::fence(); }

MEGA_DEVICE u32 atomic_exchange(u32* address, u32 value) {
  emulator::observe(address, sizeof *address);
  const u32 old = __atomic_exchange_n(address, value, __ATOMIC_RELAXED);
  emulator::note_store(address);
  return old;
}

MEGA_DEVICE u64 clock_ns() { return emulator::now_ns(); }

MEGA_DEVICE void wait_pause(u32 peer, u32 phase, u32 counter) {
  emulator::poll("mailbox cell of (rank, phase, counter)", peer, phase, counter);
}

MEGA_DEVICE void fault() { emulator::fault("store to address 0x0"); }

}  // namespace mega
