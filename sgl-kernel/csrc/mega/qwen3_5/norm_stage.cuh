// SPDX-License-Identifier: Apache-2.0
// GemmaRMSNorm of the residual stream, staged for a product, with the stock rounding: fp32 x * rstd * (1 +
// weight), one rounding to bf16. The producer of the stream leaves the sum of squares of each 16 columns, so
// no block walks a row to find its norm, and the sum is taken in one fixed order.
#pragma once
#include "common/gemv.cuh"
#include "common/math.cuh"
#include "common/reduce.cuh"

namespace mega {

template <int rows, int hidden, int warps>
struct NormStage {
  static constexpr int run = hidden / warps;
  static constexpr int vectors = (run + 255) / 256;  // of 8 columns, a lane and row
  static constexpr int squares = hidden / 16, square_vectors = (squares + 127) / 128;
  static_assert(run % 32 == 0 && squares % 4 == 0 && rows <= warps,
                "runs are whole steps, one warp reduces a row");

  uint4 weight[vectors];

  // The lane's v-th run of 8 columns in its warp's run.
  static MEGA_DEVICE int column(int v) { return 8 * (32 * v + static_cast<int>(threadIdx.x & 31)); }
  static MEGA_DEVICE bool inside(int v) { return run % 256 == 0 || column(v) < run; }

  // Before pdl_wait: the norm's weight is no product of the step.
  MEGA_DEVICE void prefetch(const bf16* norm_weight) {
    int warp = threadIdx.x / 32;
    MEGA_UNROLL
    for (int v = 0; v < vectors; ++v)
      if (inside(v)) weight[v] = load_stream(norm_weight + warp * run + column(v));
  }

  // After pdl_wait. x: [rows, hidden]; square_sums: [rows, hidden / 16]; inverse: one float a row in shared
  // memory.
  MEGA_DEVICE void run_stage(StagedRows<rows, run> staged, const bf16* x, const float* square_sums,
                             float (&inverse)[rows], int live_rows, float epsilon) {
    int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    uint4 first[vectors];
    MEGA_UNROLL
    for (int v = 0; v < vectors; ++v)
      if (inside(v)) first[v] = load_shared_by_step(x + warp * run + column(v));
    if (warp < live_rows) {
      float sum = 0.0f;
      MEGA_UNROLL
      for (int v = 0; v < square_vectors; ++v) {
        if (4 * (32 * v + lane) >= squares) continue;
        uint4 part = load_shared_by_step(square_sums + warp * squares + 4 * (32 * v + lane));
        sum += (bits_float(part.x) + bits_float(part.y)) + (bits_float(part.z) + bits_float(part.w));
      }
      sum = warp_sum(sum);
      if (lane == 0) inverse[warp] = rsqrt_fast(sum * (1.0f / hidden) + epsilon);
    }
    block_sync();
    MEGA_UNROLL
    for (int m = 0; m < rows; ++m) {
      MEGA_UNROLL
      for (int v = 0; v < vectors; ++v) {
        if (!inside(v)) continue;
        uint4 values = first[v];
        if (m > 0)
          values = m < live_rows ? load_shared_by_step(x + m * hidden + warp * run + column(v))
                                 : make_uint4(0, 0, 0, 0);
        staged.put(m, column(v), m < live_rows ? scale(values, weight[v], inverse[m]) : values);
      }
    }
    warp_sync();
  }

 private:
  static MEGA_DEVICE u32 scale_pair(u32 x, u32 w, float inverse) {
    float2 a = unpack(x), b = unpack(w);
    return pack(a.x * inverse * (1.0f + b.x), a.y * inverse * (1.0f + b.y));
  }
  static MEGA_DEVICE uint4 scale(uint4 x, uint4 w, float inverse) {
    return make_uint4(scale_pair(x.x, w.x, inverse), scale_pair(x.y, w.y, inverse),
                      scale_pair(x.z, w.z, inverse), scale_pair(x.w, w.w, inverse));
  }
};

// Adds a product, rounded to bf16, to the residual stream (rounded again, as the stock boundary does), in
// place, and leaves the sum of squares of the tile's 16 columns. Whole warps call it; r = column of the tile,
// m = row; the value counts where `live`.
template <int hidden>
MEGA_DEVICE void add_to_stream(bf16* x, float* square_sums, int tile, int m, int r, bool live, bf16 residual,
                               float product) {
  bf16 sum = to_bf16(round_bf16(product) + to_float(residual));
  float square = warp_sum<16>(to_float(sum) * to_float(sum));
  if (live) x[m * hidden + 16 * tile + r] = sum;
  if (live && r == 0) square_sums[m * (hidden / 16) + tile] = square;
}

}  // namespace mega
