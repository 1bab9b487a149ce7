// SPDX-License-Identifier: Apache-2.0
// All-reduce, residual add and RMSNorm of a decode step's rows in one launch and one exchange: each rank
// sends its partial sums to every peer, sums what comes in rank order (so all ranks agree bit for bit) and
// norms its copy of the row. One block a row; the whole grid must be resident, as each block waits for its
// twins on the other ranks.
//
// Constants: RANKS, ROWS (the most a launch has), HIDDEN, EPSILON, GEMMA (0 or 1), DEADLINE_MS.
#include "common/mailbox.cuh"
#include "common/row_norm.cuh"

namespace mega {

constexpr u32 ranks = MEGA_RANKS;
constexpr u32 max_rows = MEGA_ROWS;
constexpr u32 threads = MEGA_HIDDEN / 8;
static_assert(ranks >= 2 && ranks <= max_ranks, "a hop has 2 to 8 ranks");
static_assert(MEGA_HIDDEN % 256 == 0 && threads <= 1024,
              "a thread takes 8 columns, a block whole warps and one row");

// The cell that `source` fills for (row, column group).
MEGA_DEVICE u32 cell_of(u32 buffer, u32 source, u32 row) {
  return ((buffer * ranks + source) * max_rows + row) * threads + threadIdx.x;
}

// partial, residual (updated in place), out: [rows, HIDDEN] bf16, rows = grid size; weight: [HIDDEN] bf16.
MEGA_KERNEL(one_shot_norm, threads, 1)
(const Mailbox* mailbox, const bf16* partial, bf16* residual, const bf16* weight, bf16* out) {
  MEGA_SHARED(float[32], sums);
  pdl_launch();
  u32 row = blockIdx.x;
  u64 place = u64{row} * MEGA_HIDDEN + 8 * threadIdx.x;
  uint4 gain = load_stream(weight + 8 * threadIdx.x);
  Round<ranks> round(mailbox);
  if (keeps(Mutant::no_dependency)) pdl_wait();

  round.begin();
  u32 rank = round.rank, buffer = round.buffer();
  uint4 own = escape(load_shared_by_step(partial + place));
  round.send_to_all(cell_of(buffer, rank, row), own);
  uint4 before = load_shared_by_step(residual + place);

  uint4 arrived[ranks];
  MEGA_UNROLL
  for (u32 peer = 0; peer < ranks; ++peer) {
    arrived[peer] = peer == rank ? own : round.peek(cell_of(buffer, peer, row));
  }
  Columns sum = {};
  MEGA_UNROLL
  for (u32 peer = 0; peer < ranks; ++peer) {
    if (peer != rank) {
      u32 cell = cell_of(buffer, peer, row);
      arrived[peer] = round.receive(cell, arrived[peer], peer, 1, row);
      round.empty(cell, 1);
    }
    Columns part = Columns::of(arrived[peer]);
    MEGA_UNROLL
    for (int i = 0; i < 8; ++i) sum.value[i] += part.value[i];
  }
  MEGA_UNROLL
  for (int i = 0; i < 8; ++i) sum.value[i] = round_bf16(sum.value[i]);

  NormedRow result = add_norm<MEGA_GEMMA, threads>(sum, before, gain, MEGA_EPSILON, sums);
  store_vector(residual + place, result.residual);
  store_vector(out + place, result.normed);
  round.finish();
}

}  // namespace mega
