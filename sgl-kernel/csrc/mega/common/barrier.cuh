// SPDX-License-Identifier: Apache-2.0
// Barriers of a block and of a whole resident grid, mbarriers and the bulk copies that complete on them.
#pragma once
#include "common/memory.cuh"
#include "common/types.cuh"

#if !defined(__CUDACC__) && !defined(__CUDACC_RTC__)
#include "emulator/barrier.h"
#else

namespace mega {

MEGA_DEVICE void block_sync() { __syncthreads(); }
// Barrier `id` (1 to 15) among the first `threads` that call it; a multiple of 32.
MEGA_DEVICE void named_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

struct MBarrier {
  u64 word;
};

MEGA_DEVICE u32 shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }

MEGA_DEVICE void mbarrier_init(MBarrier& b, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n fence.mbarrier_init.release.cluster;" ::"r"(
                   shared_address(&b)),
               "r"(arrivals)
               : "memory");
}
MEGA_DEVICE void mbarrier_arrive(MBarrier& b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&b)) : "memory");
}
// One arrival that also expects `bytes` of bulk copies.
MEGA_DEVICE void mbarrier_expect(MBarrier& b, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&b)), "r"(bytes)
               : "memory");
}
// Returns when the phase of this parity (0, 1, 0, ...) has completed.
MEGA_DEVICE void mbarrier_wait(MBarrier& b, u32 parity) {
  u32 done = 0;
  while (!done) {
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(shared_address(&b)), "r"(parity)
        : "memory");
  }
}
// bytes (a multiple of 16, both ends aligned to 16) from global to shared memory, counted by the mbarrier.
MEGA_DEVICE void bulk_copy(void* shared, const void* global, u32 bytes, MBarrier& b) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(shared)),
      "l"(global), "r"(bytes), "r"(shared_address(&b))
      : "memory");
}
// Orders this thread's own accesses to shared memory before later bulk copies into it.
MEGA_DEVICE void proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Gives way while spinning on memory.
MEGA_DEVICE void spin_pause() {}

}  // namespace mega
#endif

namespace mega {

// All blocks of a grid that is known to be resident. `counter` grows by gridDim.x a barrier; `target` is its
// value when every block has arrived, so the caller keeps the number of barriers passed.
MEGA_DEVICE void grid_sync(u32* counter, u32 target) {
  block_sync();
  if (threadIdx.x == 0) {
    atomic_add_acq_rel(counter, 1);
    while (load_acquire(counter) < target) spin_pause();
  }
  block_sync();
}

}  // namespace mega
