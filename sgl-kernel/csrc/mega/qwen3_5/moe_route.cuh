// SPDX-License-Identifier: Apache-2.0
// MoE, front: post-attention RMSNorm, router logits, the shared expert's gate_up with SwiGLU and its sigmoid
// gate. Blocks by place: EXPERTS / 16 for logits, SHARED / 8 for gate and up rows of eight units, one for the
// gate's scalar.
//
// Constants: ROWS, HIDDEN, EXPERTS, SHARED (units of the shared expert), DEPTH, BLOCKS, EPSILON.
// Numerics: logits and gate_up rounded to bf16 before the softmax and the SwiGLU, as in the stock model; the
// scalar gate is sigmoid of an fp32 sum and is not rounded.
#include "common/gemv.cuh"
#include "common/pdl.cuh"
#include "qwen3_5/norm_stage.cuh"

namespace mega {

constexpr int rows = MEGA_ROWS, hidden = MEGA_HIDDEN, experts = MEGA_EXPERTS, shared = MEGA_SHARED_INTER;
constexpr int warps = 8, run = hidden / warps;
constexpr int logit_tiles = (experts + 15) / 16, logit_stride = 16 * logit_tiles, shared_tiles = shared / 8;
static_assert(shared % 8 == 0, "tiles are whole");

// x, square_sums, norm_weight as in the other fronts; router: [EXPERTS, HIDDEN]; gate_up: [2 SHARED, HIDDEN];
// shared_gate: [HIDDEN]; out: normed [rows, HIDDEN] bf16, logits [rows, EXPERTS up to a
// multiple of 16] bf16, shared_act [rows, SHARED] bf16,
// shared_scale [rows] fp32.
MEGA_KERNEL(moe_route, 32 * warps, MEGA_BLOCKS)
(const bf16* x, const float* square_sums, const bf16* norm_weight, const bf16* router, const bf16* gate_up,
 const bf16* shared_gate, bf16* normed, bf16* logits, bf16* shared_act, float* shared_scale, int live_rows) {
  MEGA_DYNAMIC_SHARED(dynamic);
  MEGA_SHARED(float[rows], inverse);
  using Sums = TileSums<warps, rows>;
  MEGA_SHARED(Sums, sums);
  int warp = threadIdx.x / 32, lane = threadIdx.x & 31, g = lane >> 2;
  int tile = blockIdx.x, shared_tile = tile - logit_tiles;
  StagedRows<rows, run> staged{reinterpret_cast<bf16*>(dynamic) + warp * StagedRows<rows, run>::elements};

  pdl_launch();
  const bf16 *low = shared_gate,
             *high = shared_gate;  // the last block multiplies one row 16 times: the others are cached
  if (tile < logit_tiles) {
    int first = 16 * tile + g, last = experts - 1;
    low = router + static_cast<i64>(first < last ? first : last) * hidden;
    high = router + static_cast<i64>(first + 8 < last ? first + 8 : last) * hidden;
  } else if (shared_tile < shared_tiles) {
    low = gate_up + static_cast<i64>(8 * shared_tile + g) * hidden;
    high = low + static_cast<i64>(shared) * hidden;
  }
  WeightStream<run, MEGA_DEPTH> stream;
  stream.begin(low + warp * run, high + warp * run);
  NormStage<rows, hidden, warps> norm;
  norm.prefetch(norm_weight);

  pdl_wait();
  norm.run_stage(staged, x, square_sums, inverse, live_rows, MEGA_EPSILON);
  if (blockIdx.x < rows && blockIdx.x < live_rows) {
    int row = blockIdx.x;
    MEGA_UNROLL
    for (int v = 0; v < norm.vectors; ++v) {
      if (!norm.inside(v)) continue;
      store_vector(normed + row * hidden + warp * run + norm.column(v),
                   *reinterpret_cast<const uint4*>(staged.base + row * staged.stride + norm.column(v)));
    }
  }
  float c[4] = {};
  stream.multiply(c, [&](int step) { return staged.fragment(step); });
  sums.put(warp, c);
  block_sync();
  int m = threadIdx.x / 16, r = threadIdx.x % 16;
  if (m >= live_rows || m >= rows) return;
  if (tile < logit_tiles) {
    logits[m * logit_stride + 16 * tile + r] = to_bf16(sums.sum(m, r));
  } else if (shared_tile < shared_tiles) {
    if (r < 8) {
      float gate = round_bf16(sums.sum(m, r)), up = round_bf16(sums.sum(m, r + 8));
      shared_act[m * shared + 8 * shared_tile + r] = to_bf16(silu(gate) * up);
    }
  } else if (r == 0) {
    shared_scale[m] = sigmoid(sums.sum(m, 0));
  }
}

}  // namespace mega
