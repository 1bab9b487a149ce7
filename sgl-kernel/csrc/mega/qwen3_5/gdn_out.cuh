// SPDX-License-Identifier: Apache-2.0
// Gated delta net, out: gated RMSNorm of each value head, out_proj, and the addition to the residual stream.
// A warp's run of k is whole heads, so it norms what it multiplies and no block waits for another's sums.
//
// Constants: ROWS, HIDDEN, HEADS_V, DEPTH, BLOCKS, EPSILON. Heads are 128 wide.
// Numerics: norm, weight and silu(z) in fp32 with one rounding to bf16; the product rounded to bf16, then the
// sum.
#include "common/gemv.cuh"
#include "common/pdl.cuh"
#include "qwen3_5/norm_stage.cuh"

namespace mega {

constexpr int rows = MEGA_ROWS, hidden = MEGA_HIDDEN, dim = 128, inner = MEGA_HEADS_V * dim;
constexpr int warps = MEGA_HEADS_V < 8 ? MEGA_HEADS_V : 8, run = inner / warps, heads = run / dim;
constexpr int finishers = rows == 1 ? 32 : 16 * rows;  // threads of whole warps that write the tile
static_assert(inner == warps * heads * dim && finishers <= 32 * warps,
              "a warp's run is whole heads, threads write a tile");

MEGA_DEVICE uint2 gated_norm(uint2 o, uint2 z, const float2 (&weight)[2], float inverse) {
  float2 a[2] = {unpack(o.x), unpack(o.y)}, gate[2] = {unpack(z.x), unpack(z.y)};
  u32 out[2];
  MEGA_UNROLL
  for (int i = 0; i < 2; ++i)
    out[i] = pack(a[i].x * inverse * weight[i].x * silu(gate[i].x),
                  a[i].y * inverse * weight[i].y * silu(gate[i].y));
  return make_uint2(out[0], out[1]);
}

// weight: [HIDDEN, HEADS_V * 128]; o, z: [rows, HEADS_V, 128]; norm_weight: [128] fp32;
// x: [rows, HIDDEN], updated in place; square_sums: [rows, HIDDEN / 16], written.
MEGA_KERNEL(gdn_out, 32 * warps, MEGA_BLOCKS)
(const bf16* weight, const bf16* o, const bf16* z, const float* norm_weight, bf16* x, float* square_sums,
 int live_rows) {
  MEGA_DYNAMIC_SHARED(dynamic);
  using Sums = TileSums<warps, rows>;
  MEGA_SHARED(Sums, sums);
  int warp = threadIdx.x / 32, lane = threadIdx.x & 31, g = lane >> 2, tile = blockIdx.x;
  StagedRows<rows, run> staged{reinterpret_cast<bf16*>(dynamic) + warp * StagedRows<rows, run>::elements};

  pdl_launch();
  const bf16* first_row = weight + static_cast<i64>(16 * tile + g) * inner + warp * run;
  WeightStream<run, MEGA_DEPTH> stream;
  stream.begin(first_row, first_row + 8 * inner);
  float2 norm[2] = {make_float2(norm_weight[4 * lane], norm_weight[4 * lane + 1]),
                    make_float2(norm_weight[4 * lane + 2], norm_weight[4 * lane + 3])};

  pdl_wait();
  int m = threadIdx.x / 16, r = threadIdx.x % 16;
  bool live = m < live_rows && m < rows;
  bf16 residual = live ? x[m * hidden + 16 * tile + r] : to_bf16(0.0f);
  MEGA_UNROLL
  for (int row = 0; row < rows; ++row) {
    uint2 value[heads], gate[heads];
    bool exists = row < live_rows;
    MEGA_UNROLL
    for (int h = 0; h < heads; ++h) {
      int place = row * inner + warp * run + h * dim + 4 * lane;
      value[h] = exists ? load_step_pair(o + place) : make_uint2(0, 0);
      gate[h] = exists ? load_step_pair(z + place) : make_uint2(0, 0);
    }
    MEGA_UNROLL
    for (int h = 0; h < heads; ++h) {
      float2 a = unpack(value[h].x), b = unpack(value[h].y);
      float square = warp_sum(a.x * a.x + a.y * a.y + (b.x * b.x + b.y * b.y));
      uint2 normed = gated_norm(value[h], gate[h], norm, rsqrt_fast(square * (1.0f / dim) + MEGA_EPSILON));
      *reinterpret_cast<uint2*>(staged.base + row * staged.stride + h * dim + 4 * lane) = normed;
    }
  }
  warp_sync();
  float c[4] = {};
  stream.multiply(c, [&](int step) { return staged.fragment(step); });
  sums.put(warp, c);
  block_sync();
  if (threadIdx.x >= finishers) return;
  float product = live ? sums.sum(m, r) : 0.0f;
  add_to_stream<hidden>(x, square_sums, tile, m, r, live, residual, product);
}

}  // namespace mega
