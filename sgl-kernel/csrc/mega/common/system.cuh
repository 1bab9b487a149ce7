// SPDX-License-Identifier: Apache-2.0
// Memory that other GPUs and the host see: system scope, relaxed unless a fence orders it. A 16-byte access
// is four 4-byte accesses to the memory model; only each word is atomic.
#pragma once
#include "common/types.cuh"

#if !defined(__CUDACC__) && !defined(__CUDACC_RTC__)
#include "emulator/system.h"
#else

namespace mega {

MEGA_DEVICE uint4 load_system(const void* address) {
  uint4 v;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(address)
               : "memory");
  return v;
}

MEGA_DEVICE void store_system(void* address, uint4 v) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}

MEGA_DEVICE void store_system(u32* address, u32 v) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(address), "r"(v) : "memory");
}

MEGA_DEVICE void fence_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

// Device scope; returns the old value.
MEGA_DEVICE u32 atomic_exchange(u32* address, u32 value) {
  u32 old;
  asm volatile("atom.relaxed.gpu.global.exch.b32 %0, [%1], %2;"
               : "=r"(old)
               : "l"(address), "r"(value)
               : "memory");
  return old;
}

// A clock that all SMs share, in nanoseconds; it moves in steps of up to a microsecond.
MEGA_DEVICE u64 clock_ns() {
  u64 ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns)::"memory");
  return ns;
}

// One failed try of waiting for another rank; `peer`, `phase` and `counter` name the wait in the emulator's
// reports.
MEGA_DEVICE void wait_pause(u32, u32, u32) {}

// Ends the process's use of this GPU: every later CUDA call fails, so nothing of a broken step is returned.
MEGA_DEVICE void fault() {
  asm volatile("st.global.u32 [%0], %1;" ::"l"(0ull), "r"(0u) : "memory");
  asm volatile("trap;");
}

}  // namespace mega
#endif
