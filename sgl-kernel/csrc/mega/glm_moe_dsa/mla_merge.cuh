// SPDX-License-Identifier: Apache-2.0
// Sparse multi-head latent attention: joins the splits of mla_decode. A block serves one head of one row.
//
// Constants: HEADS.
// Numerics: fp32 sums in split order, rounded to bf16; a row that chose no token gives zeros.
#include "common/barrier.cuh"
#include "common/math.cuh"
#include "common/memory.cuh"
#include "common/pdl.cuh"
#include "common/reduce.cuh"

namespace mega {

constexpr int heads = MEGA_HEADS, latent = 512, threads = latent / 4, most_splits = 128;

// Grid: (HEADS, rows). partial: [rows, HEADS, splits, 512]; stats: [rows, HEADS, splits, 2]; out: [rows,
// HEADS, 512] bf16.
MEGA_KERNEL(mla_merge, threads, 4)(const float* partial, const float* stats, bf16* out, int splits) {
  MEGA_SHARED(float[most_splits], weights);
  int lane = threadIdx.x & 31;
  i64 row = static_cast<i64>(blockIdx.y) * heads + blockIdx.x;
  pdl_launch();
  pdl_wait();
  if (threadIdx.x < 32) {
    float peak[most_splits / 32], total[most_splits / 32], best = -1e30f, all = 0.0f;
    MEGA_UNROLL
    for (int i = 0; i < most_splits / 32; ++i) {
      int split = lane + 32 * i;
      bool exists = split < splits;
      peak[i] = exists ? load_step_float(stats + 2 * (row * splits + split)) : -1e30f;
      total[i] = exists ? load_step_float(stats + 2 * (row * splits + split) + 1) : 0.0f;
      best = fmaxf(best, peak[i]);
    }
    best = warp_max_float(best);
    MEGA_UNROLL
    for (int i = 0; i < most_splits / 32; ++i) {
      peak[i] = total[i] == 0.0f ? 0.0f : exp2_fast(peak[i] - best);
      all += peak[i] * total[i];
    }
    all = warp_sum(all);
    MEGA_UNROLL
    for (int i = 0; i < most_splits / 32; ++i) {
      if (lane + 32 * i < splits) weights[lane + 32 * i] = all == 0.0f ? 0.0f : peak[i] / all;
    }
  }
  block_sync();
  float sum[4] = {};
  MEGA_UNROLL_BY(8)
  for (int split = 0; split < splits; ++split) {
    float weight = weights[split];
    if (weight == 0.0f) continue;  // an empty split has left no sums
    uint4 words = load_shared_by_step(partial + (row * splits + split) * latent + 4 * threadIdx.x);
    sum[0] += weight * bits_float(words.x), sum[1] += weight * bits_float(words.y);
    sum[2] += weight * bits_float(words.z), sum[3] += weight * bits_float(words.w);
  }
  store_pair(out + row * latent + 4 * threadIdx.x, make_uint2(pack(sum[0], sum[1]), pack(sum[2], sum[3])));
}

}  // namespace mega
