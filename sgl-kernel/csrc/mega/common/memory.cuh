// SPDX-License-Identifier: Apache-2.0
// Global-memory access by purpose. Weights are ordinary (coherent) loads: the assembler sinks ld.global.nc
// below griddepcontrol.wait, which undoes a prefetch; the tests count the loads ahead of the wait in the
// machine code.
#pragma once
#include "common/types.cuh"

#if !defined(__CUDACC__) && !defined(__CUDACC_RTC__)
#include "emulator/memory.h"
#else

namespace mega {

// 16 bytes read once: not kept in L1. May be issued before pdl_wait when nothing in the step writes them.
MEGA_DEVICE uint4 load_stream(const void* address) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(address));
  return v;
}

// 16 bytes that an earlier kernel of the step wrote; call after pdl_wait (or where its completion is known).
MEGA_DEVICE uint4 load_shared_by_step(const void* address) {
  uint4 v;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(address)
               : "memory");
  return v;
}

// 8 bytes, as load_stream and load_shared_by_step.
MEGA_DEVICE uint2 load_stream_pair(const void* address) {
  uint2 v;
  asm volatile("ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(address));
  return v;
}
MEGA_DEVICE uint2 load_step_pair(const void* address) {
  uint2 v;
  asm volatile("ld.global.cg.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(address) : "memory");
  return v;
}

MEGA_DEVICE u32 load_step_word(const void* address) {
  u32 v;
  asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(v) : "l"(address) : "memory");
  return v;
}

MEGA_DEVICE float load_step_float(const float* address) {
  float v;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(v) : "l"(address) : "memory");
  return v;
}

MEGA_DEVICE void store_vector(void* address, uint4 v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}

MEGA_DEVICE void store_pair(void* address, uint2 v) {
  asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(address), "r"(v.x), "r"(v.y) : "memory");
}

// Device scope.
MEGA_DEVICE u32 load_acquire(const u32* address) {
  u32 v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(address) : "memory");
  return v;
}

MEGA_DEVICE void store_release(u32* address, u32 value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

MEGA_DEVICE u32 atomic_add_acq_rel(u32* address, u32 value) {
  u32 old;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
               : "=r"(old)
               : "l"(address), "r"(value)
               : "memory");
  return old;
}

// Brings bytes (a multiple of 16) to L2 without waiting.
MEGA_DEVICE void prefetch_l2(const void* address, u32 bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(address), "r"(bytes) : "memory");
}

}  // namespace mega
#endif
