// SPDX-License-Identifier: Apache-2.0
// Lab: a data-dependent mixture of experts for one row, bf16: router, top-k, gate and up with SwiGLU, weighted down.
// As three launches and as one, whose blocks meet at two grid barriers. In both forms a block asks for its first
// weights as soon as it knows which they are: the router's before the wait, down's when the experts are known.
//
// Constants: HIDDEN, EXPERTS, TOP_K, INTER (units an expert).
#include "common/barrier.cuh"
#include "common/gemv.cuh"
#include "common/math.cuh"
#include "common/pdl.cuh"
#include "common/reduce.cuh"
#include "qwen3_5/top_k.cuh"

namespace mega {

constexpr int hidden = MEGA_HIDDEN, experts = MEGA_EXPERTS, top_k = MEGA_TOP_K, inter = MEGA_INTER;
constexpr int warps = 8, run = hidden / warps, depth = 16 < run / 32 ? 16 : run / 32;
constexpr int up_tiles = top_k * inter / 8, down_run = top_k * inter / warps, down_steps = down_run / 32;
static_assert(inter % 32 == 0 && down_run % 32 == 0, "a step of 32 columns lies in one expert");
using Sums = TileSums<warps, 1>;
using Picks = Selection<1, experts, top_k>;
using Stream = WeightStream<run, depth>;

struct Moe {
  const bf16 *x, *router, *w13, *w2;  // [HIDDEN], [EXPERTS, HIDDEN], [EXPERTS, 2 INTER, HIDDEN], [EXPERTS, HIDDEN, INTER]
  bf16 *logits, *act;                 // [EXPERTS], [TOP_K, INTER]
  float* y;                           // [HIDDEN]
  const int* state_index;             // [1]
};

struct Memory {
  Sums sums[2];
  Picks picks;
  alignas(16) bf16 staged[warps * (StagedRows<1, (run > down_run ? run : down_run)>::elements)];
};

struct Step {
  const Moe& moe;
  Memory& memory;
  int warp = threadIdx.x / 32, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;

  MEGA_DEVICE void stage_hidden() {
    StagedRows<1, run> staged{memory.staged + warp * StagedRows<1, run>::elements};
    for (int column = 8 * lane; column < run; column += 256)
      staged.put(0, column, load_shared_by_step(moe.x + warp * run + column));
    warp_sync();
  }
  MEGA_DEVICE void begin_route(Stream& stream, int tile) {
    if (tile >= experts / 16) return;
    const bf16* row = moe.router + (static_cast<i64>(tile) * 16 + g) * hidden + warp * run;
    stream.begin(row, row + 8 * hidden);
    warp_sync();
  }
  MEGA_DEVICE void route(Stream& stream) {
    stage_hidden();
    StagedRows<1, run> staged{memory.staged + warp * StagedRows<1, run>::elements};
    for (int tile = blockIdx.x; tile < experts / 16; tile += gridDim.x) {
      if (tile != blockIdx.x) begin_route(stream, tile);
      float c[4] = {};
      stream.multiply(c, [&](int step) { return staged.fragment(step); });
      block_sync();
      memory.sums[0].put(warp, c);
      block_sync();
      if (threadIdx.x < 16) moe.logits[tile * 16 + threadIdx.x] = to_bf16(memory.sums[0].sum(0, threadIdx.x));
    }
  }
  MEGA_DEVICE void select() {
    auto words = Picks::load(moe.logits, 1);
    memory.picks.pick(words, 1);
    block_sync();
    memory.picks.rank(moe.state_index, 1);
    block_sync();
  }
  // Expects stage_hidden and select.
  MEGA_DEVICE void up(Stream& stream) {
    StagedRows<1, run> staged{memory.staged + warp * StagedRows<1, run>::elements};
    auto begin = [&](int tile) {
      if (tile >= up_tiles) return;
      i64 expert = memory.picks.expert[0][tile / (inter / 8)];
      const bf16* gate = moe.w13 + (expert * 2 * inter + tile % (inter / 8) * 8 + g) * hidden + warp * run;
      stream.begin(gate, gate + static_cast<i64>(inter) * hidden);
      warp_sync();
    };
    begin(blockIdx.x);
    int turn = 0;
    for (int tile = blockIdx.x; tile < up_tiles; tile += gridDim.x, turn ^= 1) {
      float c[4] = {};
      stream.multiply(c, [&](int step) { return staged.fragment(step); });
      begin(tile + gridDim.x);
      memory.sums[turn].put(warp, c);
      block_sync();
      if (threadIdx.x < 8) {
        float gate = round_bf16(memory.sums[turn].sum(0, threadIdx.x));
        float up = round_bf16(memory.sums[turn].sum(0, threadIdx.x + 8));
        moe.act[tile * 8 + threadIdx.x] = to_bf16(silu(gate) * up);
      }
    }
  }

  struct Down {
    uint4 low[down_steps], high[down_steps];
  };
  // Expects select.
  MEGA_DEVICE void begin_down(Down& down, int tile) {
    if (tile >= hidden / 16) return;
    MEGA_UNROLL
    for (int i = 0; i < down_steps; ++i) {
      int column = warp * down_run + 32 * i;
      i64 expert = memory.picks.expert[0][column / inter];
      const bf16* row = moe.w2 + (expert * hidden + tile * 16 + g) * inter + column % inter + 8 * t;
      down.low[i] = load_stream(row);
      down.high[i] = load_stream(row + 8 * inter);
    }
    warp_sync();
  }
  MEGA_DEVICE void down(Down& down) {
    StagedRows<1, down_run> staged{memory.staged + warp * StagedRows<1, down_run>::elements};
    block_sync();  // up's activations are no longer read
    for (int column = 8 * lane; column < down_run; column += 256) {
      int place = warp * down_run + column;
      float share = memory.picks.share(0, place / inter);
      uint4 v = load_shared_by_step(moe.act + place);
      u32 in[4] = {v.x, v.y, v.z, v.w}, out[4];
      MEGA_UNROLL
      for (int i = 0; i < 4; ++i) {
        float2 pair = unpack(in[i]);
        out[i] = pack(pair.x * share, pair.y * share);
      }
      staged.put(0, column, make_uint4(out[0], out[1], out[2], out[3]));
    }
    warp_sync();
    int turn = 0;
    for (int tile = blockIdx.x; tile < hidden / 16; tile += gridDim.x, turn ^= 1) {
      float c[2][4] = {};
      MEGA_UNROLL
      for (int i = 0; i < down_steps; ++i) {
        uint4 a = down.low[i], b = down.high[i], x = staged.fragment(i);
        mma_bf16(c[0], a.x, b.x, a.y, b.y, x.x, x.y);
        mma_bf16(c[1], a.z, b.z, a.w, b.w, x.z, x.w);
      }
      begin_down(down, tile + gridDim.x);
      MEGA_UNROLL
      for (int e = 0; e < 4; ++e) c[0][e] += c[1][e];
      memory.sums[turn].put(warp, c[0]);
      block_sync();
      if (threadIdx.x < 16) moe.y[tile * 16 + threadIdx.x] = memory.sums[turn].sum(0, threadIdx.x);
    }
  }
};

#define MOE_ARGUMENTS                                                                                        \
  const bf16 *x, const bf16 *router, const bf16 *w13, const bf16 *w2, bf16 *logits, bf16 *act, float *y,     \
      const int *state_index
#define MOE_BEGIN                                                \
  MEGA_SHARED(Memory, memory);                                   \
  Moe moe = {x, router, w13, w2, logits, act, y, state_index};   \
  Step step{moe, memory}

MEGA_KERNEL(route, 32 * warps, 1)(MOE_ARGUMENTS) {
  MOE_BEGIN;
  Stream stream;
  step.begin_route(stream, blockIdx.x);
  pdl_launch();
  pdl_wait();
  step.route(stream);
}

MEGA_KERNEL(up, 32 * warps, 1)(MOE_ARGUMENTS) {
  MOE_BEGIN;
  Stream stream;
  pdl_wait();
  pdl_launch();  // after the wait: down may read the logits before its own
  step.stage_hidden();
  step.select();
  step.up(stream);
}

MEGA_KERNEL(down, 32 * warps, 1)(MOE_ARGUMENTS) {
  MOE_BEGIN;
  Step::Down weights;
  step.select();
  step.begin_down(weights, blockIdx.x);
  pdl_wait();
  pdl_launch();
  step.down(weights);
}

// Grid: resident blocks. arrivals: [1], a multiple of gridDim.x between launches.
MEGA_KERNEL(whole, 32 * warps, 1)(MOE_ARGUMENTS, u32* arrivals) {
  MOE_BEGIN;
  Stream stream;
  step.begin_route(stream, blockIdx.x);
  pdl_launch();
  pdl_wait();
  u32 target = load_acquire(arrivals) / gridDim.x * gridDim.x;
  step.route(stream);
  if (blockIdx.x >= experts / 16) step.stage_hidden();
  grid_sync(arrivals, target += gridDim.x);
  step.select();
  step.up(stream);
  Step::Down weights;
  step.begin_down(weights, blockIdx.x);
  grid_sync(arrivals, target += gridDim.x);
  step.down(weights);
}

}  // namespace mega
