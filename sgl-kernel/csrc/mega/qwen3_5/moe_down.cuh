// SPDX-License-Identifier: Apache-2.0
// MoE, down: down projections of the selected and the shared expert, their weights, and the addition to the
// residual stream. A block owns 16 columns; a warp multiplies one expert's 16 rows (or a 1 / SPLIT run of k
// of them), which lie together in memory. The selection is made and the first weights are read before the
// dependency wait: moe_up lets this kernel start only after its own wait, so the logits are complete.
//
// Constants: ROWS, HIDDEN, EXPERTS, TOP_K, INTER, SHARED_INTER (equal to INTER), SPLIT, DEPTH, BLOCKS.
// Numerics: the routed sum in fp32 in order of falling logit (the stock kernel rounds each expert's share to
// bf16 first); routed sum and shared product rounded to bf16; scale * shared + routed in fp32, rounded, added
// to the stream, rounded.
#include "common/gemv.cuh"
#include "common/pdl.cuh"
#include "qwen3_5/norm_stage.cuh"
#include "qwen3_5/top_k.cuh"

namespace mega {

constexpr int rows = MEGA_ROWS, hidden = MEGA_HIDDEN, experts = MEGA_EXPERTS, top_k = MEGA_TOP_K;
constexpr int inter = MEGA_INTER, split = MEGA_SPLIT;
constexpr int run = inter / split, routed_warps = top_k * split, busy_warps = routed_warps + split;
constexpr int warps = busy_warps > 8 ? busy_warps : 8;
constexpr int finishers = rows == 1 ? 32 : 16 * rows;
static_assert(inter == MEGA_SHARED_INTER && run % 32 == 0, "the shared expert is as wide as a routed one");
static_assert(32 * warps >= finishers && warps >= rows && warps <= 32,
              "a warp selects for a row, threads write a tile");

struct Leaders {  // distinct experts, in order of their first pick
  int count;
  int expert[rows * top_k];
};

// One warp.
template <class Picks>
MEGA_DEVICE void list_leaders(const Picks& picks, Leaders& leaders) {
  int lane = threadIdx.x & 31, count = 0;
  for (int base = 0; base < rows * top_k; base += 32) {
    int pick = base + lane, expert = pick < rows * top_k ? picks.expert[pick / top_k][pick % top_k] : -1;
    bool leads = expert >= 0 && !picks.picked_before(pick / top_k, expert);
    u32 ballot = warp_ballot(leads);
    if (leads) leaders.expert[count + count_bits(ballot & ((1u << lane) - 1))] = expert;
    count += count_bits(ballot);
  }
  if (lane == 0) leaders.count = count;
}

// One expert's rows for one warp. place: among the leaders; slot: of the lane's activation row, -1 where it did
// not pick the expert; weight: of the rows 2t and 2t + 1, which the lane's sums belong to.
struct Job {
  int expert, slot;
  float weight[2];
};

template <class Picks>
MEGA_DEVICE Job job_of(const Picks& picks, int expert, int live_rows) {
  int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
  Job job = {expert, g < rows && g < live_rows ? picks.slot_of(g, expert) : -1, {0.0f, 0.0f}};
  MEGA_UNROLL
  for (int j = 0; j < 2; ++j) {
    int row = 2 * t + j;
    if (row < rows && row < live_rows) job.weight[j] = picks.share(row, picks.slot_of(row, expert));
  }
  return job;
}

// Grid: HIDDEN / 16. act: [rows, TOP_K, INTER]; shared_act: [rows, SHARED_INTER]; logits: [rows, EXPERTS up
// to a multiple of 16]; w2: [EXPERTS, HIDDEN, INTER]; shared_down: [HIDDEN, SHARED_INTER]; shared_scale:
// [rows]; x, square_sums: the stream.
// Blackwell's assembler spills here in the registers that two blocks leave.
MEGA_KERNEL(moe_down, 32 * warps, MEGA_BLACKWELL ? 1 : MEGA_BLOCKS)
(const bf16* act, const bf16* shared_act, const bf16* logits, const bf16* w2, const bf16* shared_down,
 const float* shared_scale, const int* state_index, bf16* x, float* square_sums, int live_rows) {
  using Sums = TileSums<warps, rows>;
  using Picks = Selection<rows, experts, top_k>;
  MEGA_SHARED(Sums, sums);
  MEGA_SHARED(Picks, picks);
  MEGA_SHARED(Leaders, leaders);
  int warp = threadIdx.x / 32, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, tile = blockIdx.x;
  int part = warp % split;
  bool routed = warp < routed_warps;

  pdl_launch();
  if (warp < Picks::warps) picks.pick(Picks::load(logits, live_rows), live_rows);
  block_sync();
  picks.rank(state_index, live_rows);
  block_sync();
  if constexpr (rows > 1) {
    if (warp == 0) list_leaders(picks, leaders);
    block_sync();
  }
  int count = rows > 1 ? leaders.count : picks.expert[0][0] < 0 ? 0 : top_k;  // one row's picks all lead
  auto leader = [&](int index) { return rows > 1 ? leaders.expert[index] : picks.expert[0][index]; };
  int place = warp / split;  // of a leader, then every TOP_K-th
  bool works = routed ? place < count : warp < busy_warps;
  Job job = {-1, g < rows && g < live_rows ? 0 : -1, {1.0f, 1.0f}};
  if (routed && works) job = job_of(picks, leader(place), live_rows);
  auto weights = [&] {
    const bf16* matrix = routed ? w2 + static_cast<i64>(job.expert) * hidden * inter : shared_down;
    return matrix + (16 * tile + g) * inter + part * run;
  };
  WeightStream<run, MEGA_DEPTH> stream;
  if (works) stream.begin(weights(), weights() + 8 * inter);

  pdl_wait();
  int m = threadIdx.x / 16, r = threadIdx.x % 16;
  bool live = m < live_rows && m < rows;
  bf16 residual = live ? x[m * hidden + 16 * tile + r] : to_bf16(0.0f);
  float scale = live ? load_step_float(shared_scale + m) : 0.0f;
  float total[4] = {};
  while (works) {
    const bf16* rows_in = routed ? act + (g * top_k + job.slot) * inter : shared_act + g * inter;
    const bf16* input = rows_in + part * run + 8 * t;
    float c[4] = {};
    stream.multiply(c, [&](int step) {
      return job.slot >= 0 ? load_shared_by_step(input + 32 * step) : make_uint4(0, 0, 0, 0);
    });
    MEGA_UNROLL
    for (int j = 0; j < 4; ++j) total[j] += job.weight[j % 2] * c[j];
    place += top_k;
    works = routed && place < count;
    if (!works) break;
    job = job_of(picks, leader(place), live_rows);
    stream.begin(weights(), weights() + 8 * inter);
  }
  sums.put(warp, total);
  block_sync();
  if (threadIdx.x >= finishers) return;
  float product = 0.0f;
  if (live) {
    float sum = round_bf16(sums.sum(m, r, 0, routed_warps));
    product = scale * round_bf16(sums.sum(m, r, routed_warps, split)) + sum;
  }
  add_to_stream<hidden>(x, square_sums, tile, m, r, live, residual, product);
}

}  // namespace mega
