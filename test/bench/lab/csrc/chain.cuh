// SPDX-License-Identifier: Apache-2.0
// Lab: a chain of dependent bf16 products, up (INNER x HIDDEN) and down (HIDDEN x INNER), as one launch a product and
// as one persistent kernel with a grid barrier between products. Both ask for the weights of a block's first tile
// before they wait for the activations.
//
// Constants: HIDDEN, INNER, ROWS (at most 8), DEPTH, PERSISTENT.
#include "common/barrier.cuh"
#include "common/gemv.cuh"
#include "common/math.cuh"
#include "common/pdl.cuh"
#include "common/reduce.cuh"

namespace mega {

constexpr int hidden = MEGA_HIDDEN, inner = MEGA_INNER, rows = MEGA_ROWS, warps = 8;
using Sums = TileSums<warps, rows>;

// y[rows, n] = x[rows, k] W[n, k]^T; a block takes tiles of 16 weight rows from blockIdx.x in steps of gridDim.x.
template <int n, int k>
struct Product {
  static constexpr int run = k / warps, depth = MEGA_DEPTH < run / 32 ? MEGA_DEPTH : run / 32;
  WeightStream<run, depth> stream;

  MEGA_DEVICE void begin(const bf16* w, int tile) {
    if (tile >= n / 16) return;
    int g = (threadIdx.x & 31) >> 2;
    const bf16* row = w + (static_cast<i64>(tile) * 16 + g) * k + threadIdx.x / 32 * run;
    stream.begin(row, row + 8 * k);
    warp_sync();
  }

  // After begin of tile blockIdx.x, when x may be read.
  MEGA_DEVICE void finish(const bf16* w, const bf16* x, bf16* y, unsigned char* memory, Sums (&sums)[2]) {
    int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    StagedRows<rows, run> staged{reinterpret_cast<bf16*>(memory) + warp * StagedRows<rows, run>::elements};
    for (int m = 0; m < rows; ++m)
      for (int column = 8 * lane; column < run; column += 256)
        staged.put(m, column, load_shared_by_step(x + m * k + warp * run + column));
    warp_sync();
    int turn = 0;
    for (int tile = blockIdx.x; tile < n / 16; tile += gridDim.x, turn ^= 1) {
      float c[4] = {};
      stream.multiply(c, [&](int step) { return staged.fragment(step); });
      begin(w, tile + gridDim.x);
      sums[turn].put(warp, c);
      block_sync();
      if (threadIdx.x < 16 * rows) {
        int m = threadIdx.x / 16, r = threadIdx.x % 16;
        y[m * n + tile * 16 + r] = to_bf16(sums[turn].sum(m, r));
      }
    }
  }
};

#if MEGA_PERSISTENT
// Grid: resident blocks. w: [pairs, 2, INNER * HIDDEN], up then down; x: [ROWS, HIDDEN], read and written; h: [ROWS,
// INNER]; arrivals: [1], a multiple of gridDim.x at the start of a launch. work 0: barriers alone.
MEGA_KERNEL(persistent, 32 * warps, 1)
(const bf16* w, bf16* x, bf16* h, u32* arrivals, int pairs, int work) {
  MEGA_DYNAMIC_SHARED(memory);
  using TwoSums = Sums[2];
  MEGA_SHARED(TwoSums, sums);
  constexpr i64 size = static_cast<i64>(inner) * hidden;
  Product<inner, hidden> up;
  Product<hidden, inner> down;
  // The count of barriers so far: no block can be more than one barrier ahead of the counter.
  u32 target = load_acquire(arrivals) / gridDim.x * gridDim.x;
  if (work) up.begin(w, blockIdx.x);
  for (int pair = 0; pair < pairs; ++pair) {
    const bf16* mine = w + 2 * pair * size;
    if (work) up.finish(mine, x, h, memory, sums);
    if (work) down.begin(mine + size, blockIdx.x);
    grid_sync(arrivals, target += gridDim.x);
    if (work) down.finish(mine + size, h, x, memory, sums);
    if (work && pair + 1 < pairs) up.begin(mine + 2 * size, blockIdx.x);
    grid_sync(arrivals, target += gridDim.x);
  }
}
#else
template <int n, int k>
MEGA_DEVICE void one(const bf16* w, const bf16* x, bf16* y) {
  MEGA_DYNAMIC_SHARED(memory);
  using TwoSums = Sums[2];
  MEGA_SHARED(TwoSums, sums);
  Product<n, k> product;
  product.begin(w, blockIdx.x);
  pdl_launch();
  pdl_wait();
  product.finish(w, x, y, memory, sums);
}
MEGA_KERNEL(up, 32 * warps, 1)(const bf16* w, const bf16* x, bf16* y) { one<inner, hidden>(w, x, y); }
MEGA_KERNEL(down, 32 * warps, 1)(const bf16* w, const bf16* x, bf16* y) { one<hidden, inner>(w, x, y); }
#endif

}  // namespace mega
