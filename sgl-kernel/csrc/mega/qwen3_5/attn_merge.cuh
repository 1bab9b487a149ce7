// SPDX-License-Identifier: Apache-2.0
// Full attention: joins the splits of attn_decode and applies the output gate. A block serves one head of one
// row.
//
// Constants: HEADS, KV_HEADS, SPLITS. Heads are 256 wide.
// Numerics: fp32 sums over every fourth split, then over the four; rounded to bf16
// (the attention's output), times sigmoid(gate) in fp32, rounded.
#include "common/barrier.cuh"
#include "common/math.cuh"
#include "common/memory.cuh"
#include "common/pdl.cuh"
#include "common/reduce.cuh"

namespace mega {

constexpr int heads = MEGA_HEADS, kv_heads = MEGA_KV_HEADS, splits = MEGA_SPLITS, dim = 256;
constexpr int runs = 4, threads = runs * dim / 4, length = (splits + runs - 1) / runs;
static_assert(splits <= 64, "a warp holds the splits' statistics, two a lane");

// Grid: (HEADS, rows). partial: [rows, HEADS, SPLITS, 256]; stats: [rows, HEADS, SPLITS, 2]; qkv as in
// attn_decode; out: [rows, HEADS, 256] bf16.
MEGA_KERNEL(attn_merge, threads, 4)(const float* partial, const float* stats, const bf16* qkv, bf16* out) {
  MEGA_SHARED(float[runs][dim], sums);
  MEGA_SHARED(float[64], weights);
  int run = threadIdx.x / 64, column = threadIdx.x % 64 * 4, head = blockIdx.x, row = blockIdx.y;
  int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  i64 place = (static_cast<i64>(row) * heads + head) * splits;
  pdl_launch();
  pdl_wait();
  if (warp == 0) {
    float peak[2], total[2];
    MEGA_UNROLL
    for (int i = 0; i < 2; ++i) {
      int split = lane + 32 * i;
      bool exists = split < splits;
      peak[i] = exists ? load_step_float(stats + 2 * (place + split)) : -1e30f;
      total[i] = exists ? load_step_float(stats + 2 * (place + split) + 1) : 0.0f;
    }
    float best = warp_max_float(fmaxf(peak[0], peak[1])), scale[2];
    MEGA_UNROLL
    for (int i = 0; i < 2; ++i) scale[i] = total[i] > 0.0f ? exp2_fast(peak[i] - best) : 0.0f;
    float all = warp_sum(scale[0] * total[0] + scale[1] * total[1]);
    MEGA_UNROLL
    for (int i = 0; i < 2; ++i) weights[lane + 32 * i] = scale[i] / all;
  }
  block_sync();
  float sum[4] = {};
  MEGA_UNROLL_BY(4)
  for (int i = 0; i < length; ++i) {
    int split = i * runs + run;
    float weight = split < splits ? weights[split] : 0.0f;
    if (weight == 0.0f) continue;  // an empty split has left no sums
    uint4 words = load_shared_by_step(partial + (place + split) * dim + column);
    sum[0] += weight * bits_float(words.x), sum[1] += weight * bits_float(words.y);
    sum[2] += weight * bits_float(words.z), sum[3] += weight * bits_float(words.w);
  }
  MEGA_UNROLL
  for (int i = 0; i < 4; ++i) sums[run][column + i] = sum[i];
  block_sync();
  int channel = threadIdx.x;
  float value = 0.0f;
  MEGA_UNROLL
  for (int i = 0; i < runs; ++i) value += sums[i][channel];
  const bf16* gates = qkv + (static_cast<i64>(row) * (2 * heads + 2 * kv_heads) + 2 * head + 1) * dim;
  float gate = to_float(gates[channel]);
  out[(row * heads + head) * dim + channel] = to_bf16(round_bf16(value) * sigmoid(gate));
}

}  // namespace mega
