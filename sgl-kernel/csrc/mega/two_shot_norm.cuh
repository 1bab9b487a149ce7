// SPDX-License-Identifier: Apache-2.0
// All-reduce, residual add and RMSNorm of wider steps in two exchanges: row t goes to its owner, rank t mod
// RANKS, which sums the partials in rank order and sends the row back. A rank sends 2 (RANKS - 1) / RANKS of
// its rows where one-shot sends RANKS - 1 times all of them. A block takes rows in turn; it sends all its
// partials before it waits for anything, and the whole grid must be resident.
//
// Constants: RANKS, ROWS (the most a launch has), HIDDEN, EPSILON, GEMMA (0 or 1), DEADLINE_MS.
#include "common/mailbox.cuh"
#include "common/row_norm.cuh"

namespace mega {

constexpr u32 ranks = MEGA_RANKS;
constexpr u32 max_rows = MEGA_ROWS;
constexpr u32 threads = MEGA_HIDDEN / 8;
constexpr u32 owned_rows = (max_rows + ranks - 1) / ranks;
static_assert(ranks >= 2 && ranks <= max_ranks, "a hop has 2 to 8 ranks");
static_assert(MEGA_HIDDEN % 256 == 0 && threads <= 1024,
              "a thread takes 8 columns, a block whole warps and one row");

// The owner's cell that `source` fills with its partial of a row.
MEGA_DEVICE u32 partial_cell(u32 buffer, u32 source, u32 row) {
  return ((buffer * ranks + source) * owned_rows + row / ranks) * threads + threadIdx.x;
}
// Every rank's cell for the row that comes back from its owner.
MEGA_DEVICE u32 returned_cell(u32 buffer, u32 row) {
  return (mailbox_depth * ranks * owned_rows + buffer * max_rows + row) * threads + threadIdx.x;
}

MEGA_DEVICE u64 place_of(u32 row) { return u64{row} * MEGA_HIDDEN + 8 * threadIdx.x; }

// The sum of an owned row over all ranks, rounded to bf16.
MEGA_DEVICE uint4 sum_owned_row(const Round<ranks>& round, u32 row, uint4 own) {
  uint4 arrived[ranks];
  MEGA_UNROLL
  for (u32 peer = 0; peer < ranks; ++peer) {
    arrived[peer] = peer == round.rank ? own : round.peek(partial_cell(round.buffer(), peer, row));
  }
  Columns sum = {};
  MEGA_UNROLL
  for (u32 peer = 0; peer < ranks; ++peer) {
    if (peer != round.rank) {
      u32 cell = partial_cell(round.buffer(), peer, row);
      arrived[peer] = round.receive(cell, arrived[peer], peer, 1, row);
      round.empty(cell, 1);
    }
    Columns part = Columns::of(arrived[peer]);
    MEGA_UNROLL
    for (int i = 0; i < 8; ++i) sum.value[i] += part.value[i];
  }
  return escape(sum.packed());
}

// partial, residual (updated in place), out: [rows, HIDDEN] bf16; weight: [HIDDEN] bf16.
MEGA_KERNEL(two_shot_norm, threads, 1)
(const Mailbox* mailbox, const bf16* partial, bf16* residual, const bf16* weight, bf16* out, u32 rows) {
  MEGA_SHARED(float[32], sums);
  pdl_launch();
  uint4 gain = load_stream(weight + 8 * threadIdx.x);
  Round<ranks> round(mailbox);
  if (keeps(Mutant::no_dependency)) pdl_wait();

  round.begin();
  u32 rank = round.rank, buffer = round.buffer();
  for (u32 row = blockIdx.x; row < rows; row += gridDim.x) {
    uint4 own = escape(load_shared_by_step(partial + place_of(row)));
    if (row % ranks != rank) round.send(row % ranks, partial_cell(buffer, rank, row), own);
  }
  for (u32 row = blockIdx.x; row < rows; row += gridDim.x) {
    if (row % ranks != rank) continue;
    uint4 sum = sum_owned_row(round, row, escape(load_shared_by_step(partial + place_of(row))));
    round.send_to_all(returned_cell(buffer, row), sum);
    store_vector(out + place_of(row), sum);  // kept for this thread's own third pass
  }
  for (u32 row = blockIdx.x; row < rows; row += gridDim.x) {
    uint4 sum;
    if (row % ranks == rank) {
      sum = *reinterpret_cast<const uint4*>(out + place_of(row));
    } else {
      u32 cell = returned_cell(buffer, row);
      sum = round.receive(cell, round.peek(cell), row % ranks, 2, row);
      round.empty(cell, 2);
    }
    uint4 before = load_shared_by_step(residual + place_of(row));
    NormedRow result = add_norm<MEGA_GEMMA, threads>(Columns::of(sum), before, gain, MEGA_EPSILON, sums);
    store_vector(residual + place_of(row), result.residual);
    store_vector(out + place_of(row), result.normed);
    block_sync();  // `sums` is free for the next row
  }
  round.finish();
}

}  // namespace mega
