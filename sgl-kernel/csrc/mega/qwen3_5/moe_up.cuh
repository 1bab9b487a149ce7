// SPDX-License-Identifier: Apache-2.0
// MoE, up: top-k, then gate and up rows of the selected experts with SwiGLU. A block serves eight units of
// one pick (row, slot); where rows pick the same expert, the first row's block serves all of them and the
// others leave.
//
// Constants: ROWS, HIDDEN, EXPERTS, TOP_K, INTER (units an expert), DEPTH, BLOCKS.
// Numerics: products in fp32, rounded to bf16, SwiGLU in fp32, rounded to bf16.
#include "common/gemv.cuh"
#include "common/pdl.cuh"
#include "qwen3_5/top_k.cuh"

namespace mega {

constexpr int rows = MEGA_ROWS, hidden = MEGA_HIDDEN, experts = MEGA_EXPERTS, top_k = MEGA_TOP_K,
              inter = MEGA_INTER;
constexpr int warps = 8, run = hidden / warps, tiles = inter / 8, vectors = (run + 255) / 256;
static_assert(inter % 8 == 0 && run % 32 == 0 && rows <= warps, "tiles are whole, a warp selects for a row");

// Grid: INTER / 8 * TOP_K * rows. normed: [rows, HIDDEN]; logits: [rows, EXPERTS up to a multiple of 16];
// w13: [EXPERTS, 2 INTER, HIDDEN], gate rows first; state_index: [rows], negative for padding; act: [rows,
// TOP_K, INTER].
MEGA_KERNEL(moe_up, 32 * warps, MEGA_BLOCKS)
(const bf16* normed, const bf16* logits, const bf16* w13, const int* state_index, bf16* act, int live_rows) {
  MEGA_DYNAMIC_SHARED(dynamic);
  using Sums = TileSums<warps, rows>;
  using Picks = Selection<rows, experts, top_k>;
  MEGA_SHARED(Sums, sums);
  MEGA_SHARED(Picks, picks);
  int warp = threadIdx.x / 32, lane = threadIdx.x & 31, g = lane >> 2;
  int tile = blockIdx.x % tiles, slot = blockIdx.x / tiles % top_k, row = blockIdx.x / tiles / top_k;
  StagedRows<rows, run> staged{reinterpret_cast<bf16*>(dynamic) + warp * StagedRows<rows, run>::elements};
  bool live = warp < live_rows && state_index[warp] >= 0;

  pdl_wait();
  pdl_launch();  // after the wait: moe_down may read the logits before its own
  if (warp < rows) picks.select(warp, logits + (warp < live_rows ? warp : 0) * Picks::stride, live);
  MEGA_UNROLL
  for (int m = 0; m < rows; ++m) {
    MEGA_UNROLL
    for (int v = 0; v < vectors; ++v) {
      int column = 8 * (32 * v + lane);
      if (column >= run) continue;
      staged.put(m, column,
                 m < live_rows ? load_shared_by_step(normed + m * hidden + warp * run + column)
                               : make_uint4(0, 0, 0, 0));
    }
  }
  block_sync();
  int expert = picks.expert[row][slot];
  if (expert < 0 || picks.picked_before(row, expert)) return;
  const bf16* gate_row = w13 + (static_cast<i64>(expert) * 2 * inter + 8 * tile + g) * hidden + warp * run;
  WeightStream<run, MEGA_DEPTH> stream;
  stream.begin(gate_row, gate_row + static_cast<i64>(inter) * hidden);
  warp_sync();  // keeps the loads together, ahead of their uses
  float c[4] = {};
  stream.multiply(c, [&](int step) { return staged.fragment(step); });
  sums.put(warp, c);
  block_sync();
  int m = threadIdx.x / 8, unit = threadIdx.x % 8;
  if (m >= rows || m >= live_rows) return;
  int place = picks.slot_of(m, expert);
  if (place < 0) return;
  float gate = round_bf16(sums.sum(m, unit)), up = round_bf16(sums.sum(m, unit + 8));
  act[(m * top_k + place) * inter + 8 * tile + unit] = to_bf16(silu(gate) * up);
}

}  // namespace mega
