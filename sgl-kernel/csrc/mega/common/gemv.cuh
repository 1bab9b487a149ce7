// SPDX-License-Identifier: Apache-2.0
// Small-M products on row-major bf16 weights, read once, with no repacking: y[m, n] = sum_k W[n, k] x[m, k],
// m < 8.
//
// A warp owns 16 weight rows and a run of k. The tensor core's k order is free as long as both operands share
// it, so lane 4g + t loads the 16 bytes at k = 32 i + 8 t of rows g and g + 8 and they are its A fragments of
// two m16n8k16 products; the activation's 16 bytes at the same k of row g are the B fragments. Eight rows
// cost what one costs.
#pragma once
#include "common/barrier.cuh"
#include "common/memory.cuh"
#include "common/mma.cuh"
#include "common/types.cuh"

namespace mega {

// The weights of one warp: `run` columns (a multiple of 32) of 16 rows, `depth` steps of 32 in flight.
template <int run, int depth>
struct WeightStream {
  static constexpr int steps = run / 32;
  static_assert(run % 32 == 0 && depth <= steps,
                "a step is 32 columns, and no more are in flight than there are");

  uint4 low[depth], high[depth];
  const bf16 *low_row, *high_row;

  // Rows g and g + 8 at the first column of the warp's run.
  MEGA_DEVICE void begin(const bf16* row, const bf16* row_plus_8) {
    int t = threadIdx.x & 3;
    low_row = row + 8 * t;
    high_row = row_plus_8 + 8 * t;
    MEGA_UNROLL
    for (int i = 0; i < depth; ++i) load(i, i);
  }

  // Adds the run's products; `activation(i)` is the lane's 16 bytes of step i (row g, columns 32 i + 8 t).
  template <class Activation>
  MEGA_DEVICE void multiply(float (&sum)[4], Activation activation) {
    float chain[4][4] = {};
    MEGA_UNROLL
    for (int i = 0; i < steps; ++i) {
      uint4 a = low[i % depth], b = high[i % depth], x = activation(i);
      if (i + depth < steps) load(i % depth, i + depth);
      mma_bf16(chain[2 * (i % 2)], a.x, b.x, a.y, b.y, x.x, x.y);
      mma_bf16(chain[2 * (i % 2) + 1], a.z, b.z, a.w, b.w, x.z, x.w);
    }
    MEGA_UNROLL
    for (int j = 0; j < 4; ++j) sum[j] += (chain[0][j] + chain[1][j]) + (chain[2][j] + chain[3][j]);
  }

 private:
  MEGA_DEVICE void load(int place, int step) {
    low[place] = load_stream(low_row + 32 * step);
    high[place] = load_stream(high_row + 32 * step);
  }
};

// Activations staged in shared memory, one run of columns a warp. Rows are padded by 64 bytes, so that the
// eight lanes of a quarter warp, which read 64 bytes of each of two rows, touch every bank once.
template <int rows, int run>
struct StagedRows {
  static constexpr int stride = run + 32;
  static constexpr int elements = rows * stride;

  bf16* base;

  MEGA_DEVICE void put(int row, int column, uint4 v) {
    *reinterpret_cast<uint4*>(base + row * stride + column) = v;
  }
  MEGA_DEVICE uint4 fragment(int step) const {
    int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
    if (rows < 8 && g >= rows) return make_uint4(0, 0, 0, 0);
    return *reinterpret_cast<const uint4*>(base + g * stride + 32 * step + 8 * t);
  }
};

// Sums of the warps' partial tiles. Column n of a tile is activation row n.
template <int warps, int rows>
struct TileSums {
  float partial[warps][rows][16];

  MEGA_DEVICE void put(int warp, const float (&c)[4]) {
    int g = (threadIdx.x & 31) >> 2, n = 2 * (threadIdx.x & 3);
    if (n < rows) {
      partial[warp][n][g] = c[0];
      partial[warp][n][g + 8] = c[2];
    }
    if (n + 1 < rows) {
      partial[warp][n + 1][g] = c[1];
      partial[warp][n + 1][g + 8] = c[3];
    }
  }
  // After a block_sync: weight row r (0 to 15) of activation row m, over warps first .. first + count - 1 in
  // order.
  MEGA_DEVICE float sum(int m, int r, int first = 0, int count = warps) const {
    float total = 0.0f;
    MEGA_UNROLL
    for (int w = 0; w < count; ++w) total += partial[first + w][m][r];
    return total;
  }
};

}  // namespace mega
