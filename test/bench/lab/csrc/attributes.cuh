// SPDX-License-Identifier: Apache-2.0
// Lab: a kernel that counts, to see which launch attributes a CUDA graph keeps and what a launch costs under them.
// Every block adds one to its own counter without an atomic, so a lost order of launches loses counts.
//
// Constants: GRID_SYNC (1: one grid barrier, for cooperative launches).
#include "common/barrier.cuh"
#include "common/pdl.cuh"

namespace mega {

// counter: [gridDim.x]; arrivals: [1], the grid barrier's, zero before the chain; passed: barriers before this one.
MEGA_KERNEL(tick, 128, 1)(u32* counter, u32* arrivals) {
  pdl_launch();
  pdl_wait();
  if constexpr (MEGA_GRID_SYNC) {
    MEGA_SHARED(u32, target);
    if (threadIdx.x == 0) {
      u32 ticket = atomic_add_acq_rel(arrivals, 1);
      target = (ticket / gridDim.x + 1) * gridDim.x;
      while (load_acquire(arrivals) < target) spin_pause();
    }
    block_sync();
  }
  if (threadIdx.x == 0) {
    u32 value = load_step_word(counter + blockIdx.x);
    counter[blockIdx.x] = value + 1;
  }
}

}  // namespace mega
