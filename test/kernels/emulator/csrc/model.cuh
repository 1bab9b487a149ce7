// SPDX-License-Identifier: Apache-2.0
// Small kernels, one for each part of the programming model that the emulator
// gives.
#pragma once
#include "common/barrier.cuh"
#include "common/math.cuh"
#include "common/memory.cuh"
#include "common/mma.cuh"
#include "common/pdl.cuh"
#include "common/reduce.cuh"

using namespace mega;

// Sums of squares of rows of 256 bf16 values; one block a row, warp sums
// through shared memory.
MEGA_KERNEL(row_squares, 128, 1)(const bf16* x, float* sums) {
  MEGA_SHARED(float[4], partial);
  const bf16* row = x + blockIdx.x * 256;
  float a = to_float(row[threadIdx.x]), b = to_float(row[threadIdx.x + 128]);
  float sum = warp_sum(a * a + b * b);
  if ((threadIdx.x & 31) == 0) partial[threadIdx.x / 32] = sum;
  block_sync();
  if (threadIdx.x == 0) sums[blockIdx.x] = partial[0] + partial[1] + partial[2] + partial[3];
}

// A value goes round all blocks: each adds its index, in turn, between two grid
// barriers.
MEGA_KERNEL(grid_rounds, 64, 1)(u32* counter, u32* cells, u32* total) {
  for (u32 round = 0; round < 3; ++round) {
    if (threadIdx.x == 0) cells[blockIdx.x] = cells[(blockIdx.x + 1) % gridDim.x + gridDim.x] + blockIdx.x;
    grid_sync(counter, gridDim.x * (2 * round + 1));
    if (threadIdx.x == 0) cells[gridDim.x + blockIdx.x] = cells[blockIdx.x];
    grid_sync(counter, gridDim.x * (2 * round + 2));
  }
  if (threadIdx.x == 0) atomic_add_acq_rel(total, cells[gridDim.x + blockIdx.x]);
}

MEGA_KERNEL(producer, 64, 1)(float* data, int trigger_early) {
  if (trigger_early) pdl_launch();
  for (int i = 0; i < 4; ++i) {
    block_sync();
    if (i == 3) data[blockIdx.x * 64 + threadIdx.x] = 1.0f + threadIdx.x;
  }
}

MEGA_KERNEL(consumer, 64, 1)(const float* data, float* out, int wait) {
  if (wait) pdl_wait();
  out[blockIdx.x * 64 + threadIdx.x] = 2.0f * data[blockIdx.x * 64 + threadIdx.x];
}

// One warp: D = A B with A [16, 16] and B [8, 16] (its rows are B's columns),
// both bf16 or fp16 by MEGA_F16.
MEGA_KERNEL(tile_product, 32, 1)(const u32* a, const u32* b, float* d) {
  u32 lane = threadIdx.x, g = lane / 4, t = lane % 4;
  float acc[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  u32 a0 = a[g * 8 + t], a1 = a[(g + 8) * 8 + t], a2 = a[g * 8 + t + 4], a3 = a[(g + 8) * 8 + t + 4];
  u32 b0 = b[g * 8 + t], b1 = b[g * 8 + t + 4];
#if MEGA_F16
  mma_f16(acc, a0, a1, a2, a3, b0, b1);
#else
  mma_bf16(acc, a0, a1, a2, a3, b0, b1);
#endif
  for (u32 i = 0; i < 4; ++i) d[(g + 8 * (i / 2)) * 8 + 2 * t + i % 2] = acc[i];
}

// The same with A read through ldmatrix.
MEGA_KERNEL(tile_product_ldmatrix, 32, 1)(const u32* a, const u32* b, float* d) {
  MEGA_SHARED(u32[16][8], tile);
  u32 lane = threadIdx.x, g = lane / 4, t = lane % 4;
  for (u32 i = lane; i < 128; i += 32) tile[i / 8][i % 8] = a[i];
  warp_sync();
  float acc[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  u32 words[4];
  ldmatrix_x4(words, &tile[lane % 8 + 8 * (lane / 8 % 2)][4 * (lane / 16)]);
  mma_bf16(acc, words[0], words[1], words[2], words[3], b[g * 8 + t], b[g * 8 + t + 4]);
  for (u32 i = 0; i < 4; ++i) d[(g + 8 * (i / 2)) * 8 + 2 * t + i % 2] = acc[i];
}

// A ring of two bulk copies; MEGA_SKIP_WAIT leaves the wait out.
MEGA_KERNEL(bulk_ring, 64, 1)(const float* source, float* out, int chunks) {
  MEGA_SHARED(float[2][64], ring);
  MEGA_SHARED(MBarrier[2], full);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) mbarrier_init(full[i], 1);
  }
  block_sync();
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      mbarrier_expect(full[i], sizeof ring[i]);
      bulk_copy(ring[i], source + 64 * i, sizeof ring[i], full[i]);
    }
  }
  for (int i = 0; i < chunks; ++i) {
#if !MEGA_SKIP_WAIT
    mbarrier_wait(full[i % 2], i / 2 % 2);
#endif
    out[64 * i + threadIdx.x] = ring[i % 2][threadIdx.x] + 1.0f;
    block_sync();
    if (threadIdx.x == 0 && i + 2 < chunks) {
      mbarrier_expect(full[i % 2], sizeof ring[0]);
      bulk_copy(ring[i % 2], source + 64 * (i + 2), sizeof ring[0], full[i % 2]);
    }
  }
}

// Half the block skips the barrier.
MEGA_KERNEL(divergent_barrier, 64, 1)(const u32* never) {
  if (threadIdx.x < 32) {
    block_sync();
  } else {
    while (load_acquire(never) == 0) spin_pause();
  }
}

MEGA_KERNEL(past_shared, 32, 1)(float* out) {
  MEGA_SHARED(float[4], small);
  volatile float* p = small;
  p[threadIdx.x] = 1.0f;
  out[threadIdx.x] = p[0];
}

// Lanes of one warp call different operations.
MEGA_KERNEL(divergent_warp, 32, 1)(float* out) {
  if (threadIdx.x < 16) {
    out[threadIdx.x] = shuffle_xor(1.0f, 1);
  } else {
    warp_sync();
  }
}

// Blocks wait for the last block to start: wrong unless the whole grid is
// resident.
MEGA_KERNEL(wait_for_last, 32, 1)(u32* flag) {
  if (threadIdx.x == 0) {
    if (blockIdx.x == gridDim.x - 1) store_release(flag, 1);
    while (load_acquire(flag) == 0) spin_pause();
  }
}

// What the emulator offers ahead of common/: cp.async in groups, and clusters with each other's shared memory.
#if !defined(__CUDACC__) && !defined(__CUDACC_RTC__)
#ifndef MEGA_PENDING
#define MEGA_PENDING 1
#endif

// A ring of two groups of cp.async, a lane's 4 bytes each, read crosswise. MEGA_PENDING: how many groups each
// wait leaves open (1 is right).
MEGA_KERNEL(async_ring, 32, 1)(const float* source, float* out, int chunks) {
  MEGA_SHARED(float[2][32], ring);
  u32 lane = threadIdx.x;
  for (int i = 0; i < 2; ++i) {
    emulator::copy_async(&ring[i][lane], source + 32 * i + lane, 4, 4);
    emulator::copy_async_commit();
  }
  for (int i = 0; i < chunks; ++i) {
    emulator::copy_async_wait(MEGA_PENDING);
    warp_sync();
    out[32 * i + lane] = ring[i % 2][31 - lane];
    warp_sync();
    if (i + 2 < chunks) emulator::copy_async(&ring[i % 2][lane], source + 32 * (i + 2) + lane, 4, 4);
    emulator::copy_async_commit();
  }
}

// Every block of a cluster publishes its index in its own shared memory and adds up everyone's.
// MEGA_BARRIER 0 leaves the first cluster barrier out.
MEGA_KERNEL(cluster_sums, 32, 1)(float* sums) {
  MEGA_SHARED(float[4], mine);
  if (threadIdx.x == 0) mine[0] = 1.0f + blockIdx.x;
#if MEGA_BARRIER
  emulator::cluster_arrive();
  emulator::cluster_wait();
#endif
  float sum = 0.0f;
  for (u32 rank = 0; rank < emulator::self->cluster_size; ++rank)
    sum += *static_cast<const float*>(emulator::shared_of_cluster_rank(&mine[0], rank));
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
  emulator::cluster_arrive();
  emulator::cluster_wait();  // nobody leaves while its memory is read
}

#endif
