// SPDX-License-Identifier: Apache-2.0
// The machine: streams of grids, their blocks and threads, and the schedule that interleaves them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "fiber.h"
#include "runtime.h"

namespace emulator {

struct Block;
struct Grid;

enum class When : int32_t { early = 0, late = 1, random = 2 };

// How threads interleave. Plain data, set from outside before a run; mirrored in emulator.py.
struct Schedule {
  uint64_t seed = 0;
  int32_t random_order = 0;    // pick the next thread at random, else first come first served
  int32_t preempt_one_in = 0;  // at a visible memory operation, switch with probability 1/n; 0: never
  When copies = When::early;   // when asynchronous copies are performed
  When stores = When::early;   // when late stores are performed
  int32_t starve_rank = -1;    // threads that match all given values run only when nothing else can
  int32_t starve_block = -1;
  int32_t starve_warp = -1;
  int32_t ahead_rank = -1;      // threads of every other rank run only when this one cannot
  int32_t resident_blocks = 0;  // blocks of one grid that are resident at a time; 0: all
  int32_t admit_on_stall = 1;   // more blocks become resident when nothing can move; else that is a deadlock
  int64_t switch_limit = 0;     // give up after so many switches; 0: the default
};

struct LateStore {
  unsigned char* address;
  unsigned char bytes;
  unsigned char data[16];
};

// Stores of one thread, one block or the finished blocks of one grid, oldest first.
struct LateStores {
  std::vector<LateStore> items;
  size_t dirty_index = SIZE_MAX;  // position in the machine's list of non-empty queues
};

struct AsyncCopy {
  int rank = 0;
  unsigned char* target = nullptr;
  const unsigned char* source = nullptr;
  unsigned bytes = 0;
  unsigned zero_bytes = 0;      // cp.async's zero fill behind the copied bytes
  uint64_t* barrier = nullptr;  // bytes are reported here, if not null
  bool arrive_only = false;     // cp.async.mbarrier.arrive: an arrival once `after` is done
  std::vector<std::shared_ptr<AsyncCopy>> after;
  std::vector<unsigned char> immediate;  // st.async carries its data
  bool done = false;
};

// The groups of one thread's cp.async or bulk-group copies, oldest first; the last one is open.
using CopyGroups = std::deque<std::vector<std::shared_ptr<AsyncCopy>>>;

enum class State : uint8_t { ready, waiting, polling, finished };

struct Wait {
  const char* what = "";
  int64_t a = -1, b = -1, c = -1;
  uint32_t mask = 0;
  const volatile void* address = nullptr;
};

struct Fiber : Thread {
  Context context;
  unsigned char* stack = nullptr;
  Block* block = nullptr;
  State state = State::finished;
  Wait wait;
  const volatile void* loaded = nullptr;  // the last visible load, for reports
  uint64_t loaded_value = 0;
  unsigned loads_since_switch = 0;
  LateStores stores;
  CopyGroups copies, bulk_copies;
  unsigned cluster_generation = 0;  // of the cluster barrier it has arrived at
};

struct WarpGroup {
  uint32_t mask = 0;
  uint32_t arrived = 0;
  WarpOp op = WarpOp::sync;
  unsigned generation = 0;
  WarpExchange exchange[2];
};

struct Warp {
  std::vector<std::unique_ptr<WarpGroup>> groups;
  uint32_t exited = 0;
};

struct Barrier {
  unsigned arrived = 0;
  unsigned expected = 0;
  unsigned reduction = 0, result = 0;
  std::vector<Fiber*> waiting;
};

struct Cluster {
  std::vector<Block*> blocks;
  unsigned live = 0, arrived = 0, generation = 0;
  std::vector<Fiber*> waiting;
};

struct Block {
  Grid* grid = nullptr;
  unsigned index = 0;
  Dim3 block_index{0, 0, 0};
  std::vector<Fiber*> fibers;
  std::vector<Warp> warps;
  Barrier barriers[16];
  std::shared_ptr<Cluster> cluster;
  unsigned live = 0;
  bool triggered = false;
  LateStores stores;  // seen by the whole block through a barrier, not yet performed
  unsigned char* shared = nullptr;
  size_t shared_used = 0;
  std::vector<std::pair<const void*, size_t>> statics;
};

struct Launch {
  std::string name;
  int rank = 0;
  int stream = 0;
  void (*entry)(void**) = nullptr;
  std::vector<std::vector<unsigned char>> arguments;
  std::vector<void*> pointers;
  Dim3 grid, block;
  unsigned cluster = 1;
  unsigned shared_bytes = 0;
  bool pdl = false;
  bool cooperative = false;
};

struct Grid {
  Launch launch;
  unsigned serial = 0;
  unsigned blocks = 0, threads = 0;
  unsigned admitted = 0, live = 0, finished = 0, triggered = 0;
  bool started = false, complete = false;
  Grid* predecessor = nullptr;
  LateStores stores;               // of finished blocks
  std::vector<Fiber*> dependents;  // threads in griddepcontrol.wait for this grid
};

enum class Outcome : int { finished = 0, fault = 1, deadlock = 2, misuse = 3, livelock = 4 };

class Ring {
 public:
  bool empty() const { return count_ == 0; }
  size_t size() const { return count_; }
  void push(Fiber* fiber);
  Fiber* pop();
  Fiber* pop_at(size_t offset);
  void clear() { head_ = count_ = 0; }

 private:
  std::vector<Fiber*> items_ = std::vector<Fiber*>(1024);
  size_t head_ = 0, count_ = 0;
};

class Machine {
 public:
  void configure(const Schedule& schedule);
  void enqueue(Launch launch);
  Outcome run();
  const std::string& report() const { return report_; }
  void name_memory(const void* address, size_t bytes, const char* name);
  void forget_memory() { names_.clear(); }
  uint64_t switches() const { return switches_; }

  // Used by the operations in runtime.h.
  Fiber* running() const { return running_; }
  void suspend(State state);
  void make_ready(Fiber* fiber);
  void maybe_preempt();
  void exit_thread();
  void progress() { ++progress_; }
  uint64_t read_clock();
  [[noreturn]] void stop_rank(const char* what);
  [[noreturn]] void stop_all(const std::string& message);
  void start_copy(const std::shared_ptr<AsyncCopy>& copy);
  void perform(AsyncCopy& copy);
  bool rank_dead(int rank) const;
  void start_grids();
  void release_warp_group(Block& block, unsigned warp, WarpGroup& group);
  void release_barrier(Block& block, Barrier& barrier);
  void wait_mbarrier(const uint64_t* barrier);
  void wake_mbarrier(const uint64_t* barrier);
  uint64_t random();
  const Schedule& schedule() const { return schedule_; }

 private:
  bool can_start(const Grid& grid) const;
  void admit(Grid& grid, bool stalled);
  void admit_block(Grid& grid, unsigned index, std::shared_ptr<Cluster> cluster);
  void reap();
  void finish_block(Block* block);
  void finish_grid(Grid& grid);
  Fiber* pick();
  bool unstall();
  bool preferred(const Fiber& fiber) const;
  bool perform_one_store();
  bool perform_stalled_stores();
  void enter(Fiber* fiber);
  std::string describe_stall() const;
  std::string describe_wait(const Fiber& fiber) const;
  std::string describe_address(const volatile void* address) const;
  void reset();
  static void thread_main();

  Schedule schedule_;
  Context scheduler_;
  Fiber* running_ = nullptr;
  Ring ready_, polling_, deferred_, deferred_polling_;
  std::vector<std::unique_ptr<Grid>> grids_;
  std::vector<Block*> exited_blocks_, blocks_, free_blocks_;
  std::vector<Fiber*> free_fibers_, all_fibers_;
  std::vector<std::shared_ptr<AsyncCopy>> pending_copies_;
  std::unordered_map<const uint64_t*, std::vector<Fiber*>> mbarrier_waiters_;
  std::vector<int> dead_ranks_;
  struct Name {
    uintptr_t begin, end;
    std::string name;
  };
  std::vector<Name> names_;
  std::string report_;
  Outcome outcome_ = Outcome::finished;
  bool stopped_ = false, clock_read_ = false;
  uint64_t progress_ = 0, progress_seen_ = 0, switches_ = 0, switches_at_start_ = 0, clock_ns_ = 0,
           clock_step_ = 0;
  uint64_t random_state_ = 1;
  int quiet_ = 0, deferred_rounds_ = 0;
  unsigned serial_ = 0;
  std::vector<LateStores*> dirty_;

 public:
  void delay_store(LateStores& queue, const LateStore& store);
  void perform_all(LateStores& queue);
  void perform_until(LateStores& queue, size_t last);  // this store and the earlier ones to the same address
  void perform_overlapping(LateStores& queue, const volatile void* address, unsigned bytes);
  void move_stores(LateStores& from, LateStores& to);
  void drop_stores(LateStores& queue);

 private:
  void mark_dirty(LateStores& queue);
  void mark_clean(LateStores& queue);
};

Machine& machine();
std::string format(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace emulator
