// SPDX-License-Identifier: Apache-2.0
// Lamport mailboxes: ranks store data straight into each other's memory, and the data itself says that it has
// come.
//
// A cell is 16 bytes. An empty cell's words are all ones, which a sender never sends: as bf16, fp16, fp32 or
// FP8 such a word is made of NaNs only, and `escape` sends another NaN in its place. So -0.0 travels exactly,
// and the one thing lost is the sign of a NaN. Every 4-byte word is checked, as a 16-byte store may arrive in
// pieces.
//
// A mailbox has three buffers, used in turn. Round r sends into and reads from buffer r mod 3; a reader
// empties each cell as soon as it has read it. A peer can write that cell again in round r + 3 at the
// earliest, and it enters round r + 2 only with this rank's data of round r + 1, which leaves after pdl_wait,
// that is, after round r's kernel has completed and its emptied cells are in place. Every rank runs the same
// rounds in the same order.
#pragma once
#include "common/barrier.cuh"
#include "common/memory.cuh"
#include "common/pdl.cuh"
#include "common/system.cuh"
#include "common/types.cuh"

// A test removes one step of the protocol at a time, by number, to see that its schedules notice.
#ifndef MEGA_MUTANT
#define MEGA_MUTANT 0
#endif
// How long to wait for a peer; compiled in, and chosen below the server's watchdog.
#ifndef MEGA_DEADLINE_MS
#define MEGA_DEADLINE_MS 20000
#endif

namespace mega {

constexpr u32 max_ranks = 8;
constexpr u32 mailbox_depth = 3;
constexpr u32 empty_word = 0xffffffffu;

enum class Mutant : int {
  none,
  no_escape,         // a NaN that looks like an empty word is sent as it is
  no_wait,           // what lies in the cell is taken at once
  one_flag,          // only the first word of a cell is checked
  no_clear,          // read cells are not emptied
  no_dependency,     // the previous kernel of the stream is not waited for
  no_rotation,       // one buffer for all rounds
  no_round_advance,  // the round counter stays
  early_advance,     // the first block to finish advances the round, not the last
  no_fault_fence,    // the fault record may still be on its way when the fault happens
  no_deadline,       // a missing peer is waited for without end
  no_gather_clear,   // two-shot: the returned rows' cells are not emptied
  no_gather_wait,    // two-shot: the returned row is taken at once
  count
};

MEGA_DEVICE constexpr bool keeps(Mutant step) { return MEGA_MUTANT != static_cast<int>(step); }

// In pinned host memory. `written` is set last.
struct FaultRecord {
  u32 written, rank, peer, slot, phase, counter, row, deadline_ms;
};

struct MailboxState {
  u32 round, finished_blocks, fault_claimed, unused;
};

// A rank's view of one mailbox, in its device memory. `inbox[r]` is rank r's memory as this process maps it;
// `slot` is the number of the mailbox, for the fault record.
struct Mailbox {
  uint4* inbox[max_ranks];
  FaultRecord* fault_record;
  MailboxState* state;
  u32 rank, slot;
};

MEGA_DEVICE u32 escape(u32 word) {
  return keeps(Mutant::no_escape) && word == empty_word ? 0xffff7fffu : word;
}
MEGA_DEVICE uint4 escape(uint4 v) { return make_uint4(escape(v.x), escape(v.y), escape(v.z), escape(v.w)); }

MEGA_DEVICE bool is_full(uint4 v) {
  if (!keeps(Mutant::one_flag)) return v.x != empty_word;
  return v.x != empty_word && v.y != empty_word && v.z != empty_word && v.w != empty_word;
}

// One exchange over a mailbox. Make it before pdl_wait, `begin` it after, `finish` it last.
template <u32 ranks>
struct Round {
  const Mailbox* mailbox;
  MailboxState* state;
  uint4* inbox[ranks];  // of rank (rank + i) % ranks; own first
  u32 rank;
  u32 counter;

  MEGA_DEVICE explicit Round(const Mailbox* mailbox)
      : mailbox(mailbox), state(mailbox->state), rank(mailbox->rank) {
    MEGA_UNROLL
    for (u32 i = 0; i < ranks; ++i) inbox[i] = mailbox->inbox[(rank + i) % ranks];
  }

  MEGA_DEVICE void begin() { counter = load_acquire(&state->round); }

  MEGA_DEVICE u32 buffer() const { return keeps(Mutant::no_rotation) ? counter % mailbox_depth : 0; }

  MEGA_DEVICE void send(u32 peer, u32 cell, uint4 escaped) const {
    store_system(mailbox->inbox[peer] + cell, escaped);
  }

  // The same cell of every peer, nearest rank above first, so that no inbox is everyone's first.
  MEGA_DEVICE void send_to_all(u32 cell, uint4 escaped) const {
    MEGA_UNROLL
    for (u32 i = 1; i < ranks; ++i) store_system(inbox[i] + cell, escaped);
  }

  // Returns `v`, read from own cell `cell` by a first try, once it is complete.
  MEGA_DEVICE uint4 receive(u32 cell, uint4 v, u32 peer, u32 phase, u32 row) const {
    if (!keeps(Mutant::no_wait) || (!keeps(Mutant::no_gather_wait) && phase == 2)) return v;
    if (is_full(v)) return v;
    u64 start = clock_ns();
    do {
      wait_pause(peer, phase, counter);
      v = load_system(own(cell));
      if (keeps(Mutant::no_deadline) && !is_full(v) &&
          clock_ns() - start > u64{MEGA_DEADLINE_MS} * 1000000u) {
        expire(peer, phase, row);
      }
    } while (!is_full(v));
    return v;
  }

  MEGA_DEVICE uint4 peek(u32 cell) const { return load_system(own(cell)); }

  MEGA_DEVICE void empty(u32 cell, u32 phase) const {
    if (!keeps(Mutant::no_clear) || (!keeps(Mutant::no_gather_clear) && phase == 2)) return;
    store_system(own(cell), make_uint4(empty_word, empty_word, empty_word, empty_word));
  }

  // The last block to finish begins the next round, for the kernels after this one. Call it after a block
  // barrier that every thread reached after `begin`, so that no thread of the block has yet to read the
  // counter.
  MEGA_DEVICE void finish() const {
    if (threadIdx.x != 0 || !keeps(Mutant::no_round_advance)) return;
    u32 finished = atomic_add_acq_rel(&state->finished_blocks, 1);
    if (finished == (keeps(Mutant::early_advance) ? gridDim.x - 1 : 0)) {
      store_release(&state->round, counter + 1);
    }
    if (finished == gridDim.x - 1) store_release(&state->finished_blocks, 0);
  }

 private:
  MEGA_DEVICE uint4* own(u32 cell) const { return inbox[0] + cell; }

  // Says in host memory who was waited for, then faults. Of the threads that come here one writes and faults;
  // the others wait for that, else they might end the context before the record is written.
  MEGA_DEVICE void expire(u32 peer, u32 phase, u32 row) const {
    if (atomic_exchange(&state->fault_claimed, 1) == 0) {
      FaultRecord* record = mailbox->fault_record;
      store_system(&record->rank, rank);
      store_system(&record->peer, peer);
      store_system(&record->slot, mailbox->slot);
      store_system(&record->phase, phase);
      store_system(&record->counter, counter);
      store_system(&record->row, row);
      store_system(&record->deadline_ms, MEGA_DEADLINE_MS);
      if (keeps(Mutant::no_fault_fence)) fence_system();
      store_system(&record->written, 1);
      if (keeps(Mutant::no_fault_fence)) fence_system();
      fault();
    }
    for (;;) wait_pause(peer, phase, counter);
  }
};

}  // namespace mega
