// SPDX-License-Identifier: Apache-2.0
// Full attention: joins the splits of attn_decode and applies the output gate. A block serves one head of one
// row.
//
// Constants: HEADS, KV_HEADS, SPLITS. Heads are 256 wide.
// Numerics: fp32 sums in the order of the splits within each of four runs, then of the runs; rounded to bf16
// (the attention's output), times sigmoid(gate) in fp32, rounded.
#include "common/barrier.cuh"
#include "common/math.cuh"
#include "common/memory.cuh"
#include "common/pdl.cuh"

namespace mega {

constexpr int heads = MEGA_HEADS, kv_heads = MEGA_KV_HEADS, splits = MEGA_SPLITS, dim = 256;
constexpr int runs = 4, threads = runs * dim / 4, length = (splits + runs - 1) / runs;

// Grid: (HEADS, rows). partial: [rows, HEADS, SPLITS, 256]; stats: [rows, HEADS, SPLITS, 2]; qkv as in
// attn_decode; out: [rows, HEADS, 256] bf16.
MEGA_KERNEL(attn_merge, threads, 4)(const float* partial, const float* stats, const bf16* qkv, bf16* out) {
  MEGA_SHARED(float[runs][dim], sums);
  MEGA_SHARED(float[2 * splits], stat);
  int run = threadIdx.x / 64, column = threadIdx.x % 64 * 4, head = blockIdx.x, row = blockIdx.y;
  i64 place = (static_cast<i64>(row) * heads + head) * splits;
  pdl_launch();
  pdl_wait();
  for (int i = threadIdx.x; i < 2 * splits; i += threads) stat[i] = load_step_float(stats + 2 * place + i);
  block_sync();
  float peak = stat[0], total = 0.0f;
  MEGA_UNROLL_BY(4)
  for (int i = 1; i < splits; ++i) peak = fmaxf(peak, stat[2 * i]);
  MEGA_UNROLL_BY(4)
  for (int i = 0; i < splits; ++i) total += stat[2 * i + 1] * exp2_fast(stat[2 * i] - peak);
  float sum[4] = {};
  MEGA_UNROLL_BY(4)
  for (int i = 0; i < length; ++i) {
    int split = run * length + i;
    if (split >= splits || stat[2 * split + 1] == 0.0f) continue;
    float weight = exp2_fast(stat[2 * split] - peak);
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
  out[(row * heads + head) * dim + channel] = to_bf16(round_bf16(value / total) * sigmoid(gate));
}

}  // namespace mega
