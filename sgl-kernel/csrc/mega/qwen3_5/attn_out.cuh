// SPDX-License-Identifier: Apache-2.0
// Full attention, out: o_proj of the gated attention output and the addition to the residual stream.
//
// Constants: ROWS, HIDDEN, INNER (q heads x 256), DEPTH, BLOCKS.
// Numerics: the product in fp32, rounded to bf16, then the sum, rounded to bf16.
#include "common/gemv.cuh"
#include "common/pdl.cuh"
#include "qwen3_5/norm_stage.cuh"

namespace mega {

constexpr int rows = MEGA_ROWS, hidden = MEGA_HIDDEN, inner = MEGA_INNER;
constexpr int warps = 8, run = inner / warps;
constexpr int finishers = rows == 1 ? 32 : 16 * rows;

// weight: [HIDDEN, INNER]; attention: [rows, INNER], gated; x: [rows, HIDDEN], updated in place;
// square_sums: [rows, HIDDEN / 16], written.
MEGA_KERNEL(attn_out, 32 * warps, MEGA_BLOCKS)
(const bf16* weight, const bf16* attention, bf16* x, float* square_sums, int live_rows) {
  using Sums = TileSums<warps, rows>;
  MEGA_SHARED(Sums, sums);
  int warp = threadIdx.x / 32, g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3, tile = blockIdx.x;

  pdl_launch();
  const bf16* first_row = weight + static_cast<i64>(16 * tile + g) * inner + warp * run;
  WeightStream<run, MEGA_DEPTH> stream;
  stream.begin(first_row, first_row + 8 * inner);

  pdl_wait();
  int m = threadIdx.x / 16, r = threadIdx.x % 16;
  bool live = m < live_rows && m < rows;
  bf16 residual = live ? x[m * hidden + 16 * tile + r] : to_bf16(0.0f);
  const bf16* input = attention + g * inner + warp * run + 8 * t;
  bool loads = g < live_rows && g < rows;
  float c[4] = {};
  stream.multiply(
      c, [&](int step) { return loads ? load_shared_by_step(input + 32 * step) : make_uint4(0, 0, 0, 0); });
  sums.put(warp, c);
  block_sync();
  if (threadIdx.x >= finishers) return;
  float product = live ? sums.sum(m, r) : 0.0f;
  add_to_stream<hidden>(x, square_sums, tile, m, r, live, residual, product);
}

}  // namespace mega
