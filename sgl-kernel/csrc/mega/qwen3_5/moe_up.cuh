// SPDX-License-Identifier: Apache-2.0
// MoE, up: top-k, then gate and up rows of the selected experts with SwiGLU. A block serves eight units of
// one pick (row, slot); where rows pick the same expert, the first row's tile serves all of them.
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

struct Tile {
  int number, expert, first;  // first: unit
};

// Grid: as many blocks as reside at once; block b serves tiles b, b + gridDim.x, ... of INTER / 8 * TOP_K * rows.
// normed: [rows, HIDDEN]; logits: [rows, EXPERTS up to a multiple of 16]; w13: [EXPERTS, 2 INTER, HIDDEN], gate
// rows first; state_index: [rows], negative for padding; act: [rows, TOP_K, INTER].
// Blackwell's assembler spills here in the registers that two blocks leave.
MEGA_KERNEL(moe_up, 32 * warps, MEGA_BLACKWELL ? 1 : MEGA_BLOCKS)
(const bf16* normed, const bf16* logits, const bf16* w13, const int* state_index, bf16* act, int live_rows) {
  MEGA_DYNAMIC_SHARED(dynamic);
  using Sums = TileSums<warps, rows>[2];
  using Picks = Selection<rows, experts, top_k>;
  MEGA_SHARED(Sums, sums);
  MEGA_SHARED(Picks, picks);
  int warp = threadIdx.x / 32, lane = threadIdx.x & 31, g = lane >> 2;
  StagedRows<rows, run> staged{reinterpret_cast<bf16*>(dynamic) + warp * StagedRows<rows, run>::elements};

  pdl_wait();
  pdl_launch();  // after the wait: moe_down may read the logits before its own
  auto words = Picks::load(logits, live_rows);
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
  picks.pick(words, live_rows);
  block_sync();
  picks.rank(state_index, live_rows);
  block_sync();

  // The block's next tile from `number` on whose expert no earlier row picked.
  auto find = [&](int number) {
    Tile tile = {number, -1, 0};
    for (; tile.number < tiles * top_k * live_rows; tile.number += gridDim.x) {
      int row = tile.number / tiles / top_k;
      tile.expert = picks.expert[row][tile.number / tiles % top_k];
      if (tile.expert >= 0 && !picks.picked_before(row, tile.expert)) break;
      tile.expert = -1;
    }
    tile.first = tile.number % tiles * 8;
    return tile;
  };
  WeightStream<run, MEGA_DEPTH> stream;
  auto begin = [&](const Tile& tile) {
    const bf16* gate = w13 + (static_cast<i64>(tile.expert) * 2 * inter + tile.first + g) * hidden + warp * run;
    stream.begin(gate, gate + static_cast<i64>(inter) * hidden);
    warp_sync();  // keeps the loads together, ahead of their uses
  };
  Tile tile = find(blockIdx.x);
  if (tile.expert >= 0) begin(tile);
  for (int turn = 0; tile.expert >= 0; turn ^= 1) {
    float c[4] = {};
    stream.multiply(c, [&](int step) { return staged.fragment(step); });
    Tile now = tile;
    tile = find(now.number + gridDim.x);
    if (tile.expert >= 0) begin(tile);
    sums[turn].put(warp, c);
    block_sync();
    int m = threadIdx.x / 8, unit = threadIdx.x % 8;
    int slot = m < rows && m < live_rows ? picks.slot_of(m, now.expert) : -1;
    if (slot < 0) continue;
    float gate = round_bf16(sums[turn].sum(m, unit)), up = round_bf16(sums[turn].sum(m, unit + 8));
    act[(m * top_k + slot) * inter + now.first + unit] = to_bf16(silu(gate) * up);
  }
}

}  // namespace mega
