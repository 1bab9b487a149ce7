// SPDX-License-Identifier: Apache-2.0
// Full attention, front: input RMSNorm and the projection to q with its gate (a head's q, then its gate), k
// and v.
//
// Constants: ROWS, HIDDEN, OUT (projected channels, a multiple of 16), DEPTH, BLOCKS, EPSILON.
// Numerics: the product in fp32, rounded to bf16.
#include "common/gemv.cuh"
#include "common/pdl.cuh"
#include "qwen3_5/norm_stage.cuh"

namespace mega {

constexpr int rows = MEGA_ROWS, hidden = MEGA_HIDDEN, outputs = MEGA_OUT;
constexpr int warps = 8, run = hidden / warps;

// x: [rows, HIDDEN]; square_sums: [rows, HIDDEN / 16]; norm_weight: [HIDDEN]; weight: [OUT, HIDDEN]; out:
// [rows, OUT].
MEGA_KERNEL(attn_front, 32 * warps, MEGA_BLOCKS)
(const bf16* x, const float* square_sums, const bf16* norm_weight, const bf16* weight, bf16* out,
 int live_rows) {
  MEGA_DYNAMIC_SHARED(dynamic);
  MEGA_SHARED(float[rows], inverse);
  using Sums = TileSums<warps, rows>;
  MEGA_SHARED(Sums, sums);
  int warp = threadIdx.x / 32, g = (threadIdx.x & 31) >> 2, tile = blockIdx.x;
  StagedRows<rows, run> staged{reinterpret_cast<bf16*>(dynamic) + warp * StagedRows<rows, run>::elements};

  pdl_launch();
  const bf16* first_row = weight + static_cast<i64>(16 * tile + g) * hidden + warp * run;
  WeightStream<run, MEGA_DEPTH> stream;
  stream.begin(first_row, first_row + 8 * hidden);
  NormStage<rows, hidden, warps> norm;
  norm.prefetch(norm_weight);

  pdl_wait();
  norm.run_stage(staged, x, square_sums, inverse, live_rows, MEGA_EPSILON);
  float c[4] = {};
  stream.multiply(c, [&](int step) { return staged.fragment(step); });
  sums.put(warp, c);
  block_sync();
  int m = threadIdx.x / 16, r = threadIdx.x % 16;
  if (m < live_rows && m < rows) out[m * outputs + 16 * tile + r] = to_bf16(sums.sum(m, r));
}

}  // namespace mega
