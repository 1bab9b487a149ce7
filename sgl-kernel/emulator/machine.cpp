// SPDX-License-Identifier: Apache-2.0
// The life of grids, blocks and threads, and the schedule.
#include "machine.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace emulator {

Thread* self = nullptr;

namespace {
constexpr size_t kSharedLimit = 232448;  // the most shared memory a block may use on sm_90 and later
constexpr size_t kSharedGuard = 256;
constexpr unsigned char kSharedFill = 0xff;  // uninitialised shared memory reads as NaN
constexpr int64_t kSwitchLimit = 4'000'000'000;
constexpr uint64_t kNanosecondsPerSwitch = 5;
constexpr int kQuietRounds = 2;                  // rounds of polling without progress before time moves on
constexpr uint64_t kClockFirstStep = 1'000'000;  // 1 ms
constexpr uint64_t kClockLastStep = 3'600'000'000'000;  // an hour: no deadline is that far away
}  // namespace

Machine& machine() {
  static Machine instance;
  return instance;
}

std::string format(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  char text[1024];
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return text;
}

void Ring::push(Fiber* fiber) {
  if (count_ == items_.size()) {
    std::rotate(items_.begin(), items_.begin() + static_cast<ptrdiff_t>(head_), items_.end());
    head_ = 0;
    items_.resize(items_.size() * 2);
  }
  items_[(head_ + count_++) & (items_.size() - 1)] = fiber;
}

Fiber* Ring::pop() {
  Fiber* fiber = items_[head_];
  head_ = (head_ + 1) & (items_.size() - 1);
  --count_;
  return fiber;
}

Fiber* Ring::pop_at(size_t offset) {
  std::swap(items_[head_], items_[(head_ + offset) & (items_.size() - 1)]);
  return pop();
}

void Machine::configure(const Schedule& schedule) {
  schedule_ = schedule;
  random_state_ = schedule.seed * 0x9e3779b97f4a7c15ull + 0x2545f4914f6cdd1dull;
  if (random_state_ == 0) random_state_ = 1;
}

uint64_t Machine::random() {  // xorshift64*
  random_state_ ^= random_state_ >> 12;
  random_state_ ^= random_state_ << 25;
  random_state_ ^= random_state_ >> 27;
  return (random_state_ * 0x2545f4914f6cdd1dull) >> 16;
}

// ---- streams and grids

void Machine::enqueue(Launch launch) {
  auto grid = std::make_unique<Grid>();
  grid->launch = std::move(launch);
  grid->serial = serial_++;
  const Launch& l = grid->launch;
  grid->blocks = l.grid.x * l.grid.y * l.grid.z;
  grid->threads = l.block.x * l.block.y * l.block.z;
  for (auto it = grids_.rbegin(); it != grids_.rend(); ++it) {
    if ((*it)->launch.rank == l.rank && (*it)->launch.stream == l.stream) {
      grid->predecessor = it->get();
      break;
    }
  }
  happens_before(grid.get());
  grids_.push_back(std::move(grid));
}

bool Machine::can_start(const Grid& grid) const {
  if (grid.started || rank_dead(grid.launch.rank)) return false;
  const Grid* before = grid.predecessor;
  if (!before || before->complete) return true;
  // A programmatic dependent may start once every block of its predecessor has triggered or exited.
  return grid.launch.pdl && before->started && before->triggered == before->blocks;
}

void Machine::start_grids() {
  for (auto& grid : grids_) {
    if (!can_start(*grid)) continue;
    grid->started = true;
    admit(*grid, false);
  }
}

void Machine::admit(Grid& grid, bool stalled) {
  const Launch& l = grid.launch;
  unsigned limit = grid.blocks;
  if (!l.cooperative && schedule_.resident_blocks > 0) {
    limit = std::max<unsigned>(schedule_.resident_blocks, l.cluster);
  }
  const bool one_more = stalled;
  while (grid.admitted < grid.blocks && (grid.live + l.cluster <= limit || stalled)) {
    std::shared_ptr<Cluster> cluster;
    if (l.cluster > 1) cluster = std::make_shared<Cluster>();
    for (unsigned i = 0; i < l.cluster; ++i) admit_block(grid, grid.admitted++, cluster);
    stalled = false;
    if (one_more) break;
  }
}

void Machine::admit_block(Grid& grid, unsigned index, std::shared_ptr<Cluster> cluster) {
  const Launch& l = grid.launch;
  Block* block;
  if (free_blocks_.empty()) {
    block = new Block;
    void* memory = nullptr;
    if (posix_memalign(&memory, 1024, kSharedLimit + kSharedGuard) != 0) std::abort();
    block->shared = static_cast<unsigned char*>(memory);
  } else {
    block = free_blocks_.back();
    free_blocks_.pop_back();
  }
  block->grid = &grid;
  block->index = index;
  block->block_index = Dim3(index % l.grid.x, index / l.grid.x % l.grid.y, index / (l.grid.x * l.grid.y));
  block->live = grid.threads;
  block->triggered = false;
  block->statics.clear();
  block->shared_used = (l.shared_bytes + 127) / 128 * 128;
  std::memset(block->shared, kSharedFill, block->shared_used + kSharedGuard);
  block->cluster = cluster;
  for (Barrier& barrier : block->barriers) {
    barrier.arrived = barrier.expected = 0;
    barrier.waiting.clear();
  }
  const unsigned warps = (grid.threads + 31) / 32;
  block->warps.resize(warps);
  for (unsigned w = 0; w < warps; ++w) {
    const unsigned lanes = std::min(32u, grid.threads - w * 32);
    block->warps[w].exited = lanes == 32 ? 0 : ~0u << lanes;
    for (auto& group : block->warps[w].groups) group->arrived = group->generation = 0;
  }
  unsigned cluster_rank = 0;
  if (cluster) {
    cluster_rank = static_cast<unsigned>(cluster->blocks.size());
    cluster->blocks.push_back(block);
    cluster->live += grid.threads;
  }
  block->fibers.resize(grid.threads);
  for (unsigned i = 0; i < grid.threads; ++i) {
    Fiber* fiber;
    if (free_fibers_.empty()) {
      fiber = new Fiber;
      fiber->stack = new_stack();
      all_fibers_.push_back(fiber);
    } else {
      fiber = free_fibers_.back();
      free_fibers_.pop_back();
    }
    fiber->thread_index = Dim3(i % l.block.x, i / l.block.x % l.block.y, i / (l.block.x * l.block.y));
    fiber->block_index = block->block_index;
    fiber->block_dim = l.block;
    fiber->grid_dim = l.grid;
    fiber->linear = i;
    fiber->cluster_rank = cluster_rank;
    fiber->cluster_size = l.cluster;
    fiber->cluster_index = index / l.cluster;
    fiber->block = block;
    fiber->state = State::ready;
    fiber->wait = Wait{};
    fiber->loaded = nullptr;
    fiber->loads_since_switch = 0;
    fiber->copies.clear();
    fiber->bulk_copies.clear();
    fiber->context.prepare(fiber->stack + 64, kStackBytes - 64, &Machine::thread_main);
    fiber->context.announce();
    block->fibers[i] = fiber;
    make_ready(fiber);
  }
  ++grid.live;
  blocks_.push_back(block);
}

void Machine::thread_main() {
  Machine& m = machine();
  Grid* grid = m.running_->block->grid;
  if (grid->predecessor && !grid->launch.pdl) happens_after(grid->predecessor);
  happens_after(grid);
  grid->launch.entry(grid->launch.pointers.data());
  m.exit_thread();
}

void Machine::exit_thread() {
  Fiber* fiber = running_;
  Block* block = fiber->block;
  if (!stack_intact(fiber->stack)) {
    stop_all(format("stack overflow in %s: a thread's frames need more than %zu bytes",
                    block->grid->launch.name.c_str(), kStackBytes));
  }
  for (const auto& groups : {&fiber->copies, &fiber->bulk_copies}) {
    for (auto& group : *groups) {
      for (auto& copy : group) perform(*copy);
    }
  }
  happens_before(&block->grid->complete);
  fiber->state = State::finished;
  move_stores(fiber->stores, block->stores);
  Warp& warp = block->warps[fiber->linear / 32];
  warp.exited |= 1u << (fiber->linear % 32);
  ++progress_;
  --block->live;
  // Warp operations and barriers do not wait for threads that have exited.
  for (auto& group : warp.groups) {
    if (group->arrived && (group->mask & ~(group->arrived | warp.exited)) == 0) {
      if (group->op == WarpOp::mma) stop_all("a thread exited that its warp's tile MMA waits for");
      release_warp_group(*block, fiber->linear / 32, *group);
    }
  }
  for (Barrier& barrier : block->barriers) {
    if (barrier.arrived && barrier.expected == 0 && barrier.arrived == block->live) {
      release_barrier(*block, barrier);
    }
  }
  if (block->cluster) {
    Cluster& cluster = *block->cluster;
    if (--cluster.live > 0 && cluster.arrived == cluster.live) {
      cluster.arrived = 0;
      ++cluster.generation;
      for (Fiber* waiting : cluster.waiting) make_ready(waiting);
      cluster.waiting.clear();
    }
  }
  if (block->live == 0) {
    exited_blocks_.push_back(block);
    running_ = nullptr;
    fiber->context.switch_to(scheduler_);
  } else {
    Fiber* next = pick();
    running_ = nullptr;
    if (next) {
      running_ = next;
      self = next;
      ++switches_;
      fiber->context.switch_to(next->context);
    } else {
      fiber->context.switch_to(scheduler_);
    }
  }
  std::abort();
}

void Machine::reap() {
  while (!exited_blocks_.empty()) {
    Block* block = exited_blocks_.back();
    exited_blocks_.pop_back();
    finish_block(block);
  }
}

void Machine::finish_block(Block* block) {
  Grid& grid = *block->grid;
  const size_t end = block->shared_used;
  size_t past = kSharedGuard;
  while (past > 0 && block->shared[end + past - 1] == kSharedFill) --past;
  if (past > 0) {
    outcome_ = Outcome::misuse;
    report_ =
        format("rank %d %s block (%u,%u,%u) wrote at least %zu bytes past its %zu bytes of shared memory",
               grid.launch.rank, grid.launch.name.c_str(), block->block_index.x, block->block_index.y,
               block->block_index.z, past, end);
    stopped_ = true;
  }
  for (const auto& copy : pending_copies_) {
    if (copy->done || copy->target < block->shared || copy->target >= block->shared + end) continue;
    outcome_ = Outcome::misuse;
    report_ = format("rank %d %s block (%u,%u,%u) exited while a copy into its shared memory was in flight",
                     grid.launch.rank, grid.launch.name.c_str(), block->block_index.x, block->block_index.y,
                     block->block_index.z);
    stopped_ = true;
  }
  for (Fiber* fiber : block->fibers) {
    fiber->context.retire();
    free_fibers_.push_back(fiber);
  }
  std::reverse(free_fibers_.end() - static_cast<ptrdiff_t>(block->fibers.size()), free_fibers_.end());
  move_stores(block->stores, grid.stores);
  if (!block->triggered) ++grid.triggered;
  block->triggered = true;
  --grid.live;
  ++grid.finished;
  blocks_.erase(std::find(blocks_.begin(), blocks_.end(), block));
  // The blocks of a cluster read each other's shared memory: keep it until all are done.
  if (!block->cluster) {
    free_blocks_.push_back(block);
  } else if (block->cluster->live == 0) {
    auto cluster = block->cluster;
    for (Block* member : cluster->blocks) {
      member->cluster.reset();
      free_blocks_.push_back(member);
    }
  }
  admit(grid, false);
  if (grid.finished == grid.blocks) finish_grid(grid);
}

void Machine::finish_grid(Grid& grid) {
  perform_all(grid.stores);
  happens_after(&grid.complete);
  grid.complete = true;
  happens_before(&grid);
  ++progress_;
  for (Fiber* dependent : grid.dependents) make_ready(dependent);
  grid.dependents.clear();
}

// ---- choosing the next thread

bool Machine::preferred(const Fiber& fiber) const {
  const Schedule& s = schedule_;
  const int rank = fiber.block->grid->launch.rank;
  if (s.ahead_rank >= 0 && rank != s.ahead_rank) return false;
  if (s.starve_rank < 0 && s.starve_block < 0 && s.starve_warp < 0) return true;
  return !((s.starve_rank < 0 || rank == s.starve_rank) &&
           (s.starve_block < 0 || fiber.block->index == static_cast<unsigned>(s.starve_block)) &&
           (s.starve_warp < 0 || fiber.linear / 32 == static_cast<unsigned>(s.starve_warp)));
}

void Machine::make_ready(Fiber* fiber) {
  fiber->state = State::ready;
  (preferred(*fiber) ? ready_ : deferred_).push(fiber);
}

Fiber* Machine::pick() {
  if (stopped_) return nullptr;
  for (;;) {
    Ring* ring = &ready_;
    if (schedule_.random_order) {
      if (!polling_.empty() && !ready_.empty() && (random() & 3) == 0) ring = &polling_;
      if (ring->empty()) return nullptr;
      Fiber* fiber = ring->pop_at(random() % ring->size());
      if (!rank_dead(fiber->block->grid->launch.rank)) return fiber;
    } else {
      if (ring->empty()) return nullptr;
      Fiber* fiber = ring->pop();
      if (dead_ranks_.empty() || !rank_dead(fiber->block->grid->launch.rank)) return fiber;
    }
  }
}

void Machine::enter(Fiber* fiber) {
  running_ = fiber;
  self = fiber;
  fiber->state = State::ready;
  ++switches_;
  scheduler_.switch_to(fiber->context);
}

// Leaves the running thread in `state` and continues another; returns when this one is resumed.
void Machine::suspend(State state) {
  Fiber* fiber = running_;
  fiber->state = state;
  fiber->loads_since_switch = 0;
  if (state == State::ready) {
    make_ready(fiber);
  } else if (state == State::polling) {
    polling_.push(fiber);
  }
  if (state != State::polling) ++progress_;
  Fiber* next = pick();
  if (next == fiber) {
    fiber->state = State::ready;
    return;
  }
  if (next) {
    running_ = next;
    self = next;
    next->state = State::ready;
    ++switches_;
    fiber->context.switch_to(next->context);
  } else {
    running_ = nullptr;
    fiber->context.switch_to(scheduler_);
  }
}

void Machine::maybe_preempt() {
  if (schedule_.preempt_one_in <= 0) return;
  if (random() % static_cast<uint64_t>(schedule_.preempt_one_in) != 0) return;
  if (schedule_.stores == When::random && (random() & 1)) perform_one_store();
  if (schedule_.copies == When::random && !pending_copies_.empty() && (random() & 1)) {
    perform(*pending_copies_[random() % pending_copies_.size()]);
  }
  suspend(State::ready);
}

uint64_t Machine::read_clock() {
  clock_read_ = true;
  return clock_ns_ + (switches_ - switches_at_start_) * kNanosecondsPerSwitch;
}

// Called when no thread is ready: makes something possible that the schedule has held back, from the mildest
// to the strongest. Returns false when nothing is left, which means that all is finished or all is stuck.
bool Machine::unstall() {
  if (!polling_.empty()) {
    const bool moved = progress_ != progress_seen_;
    progress_seen_ = progress_;
    quiet_ = moved ? 0 : quiet_ + 1;
    if (moved) clock_step_ = 0, deferred_rounds_ = 0;
    for (size_t n = polling_.size(); n > 0; --n) {
      Fiber* fiber = polling_.pop();
      fiber->state = State::ready;
      (preferred(*fiber) ? ready_ : deferred_polling_).push(fiber);
    }
    // Everybody waits. In a random schedule that is a moment for held-back stores as good as any.
    if (schedule_.stores == When::random && (random() & 1)) perform_stalled_stores();
    if (!ready_.empty() && quiet_ == 0) return true;
  }
  std::erase_if(pending_copies_, [](const auto& copy) { return copy->done; });
  enum { kCopy, kStore, kDeferred };
  int order[] = {kDeferred, kStore, kCopy};
  if (schedule_.random_order) {
    for (int i = 2; i > 0; --i) std::swap(order[i], order[random() % static_cast<uint64_t>(i + 1)]);
  }
  for (int kind : order) {
    if (kind == kCopy && !pending_copies_.empty()) {
      perform(*pending_copies_[schedule_.random_order ? random() % pending_copies_.size() : 0]);
      return true;
    }
    if (kind == kStore && perform_stalled_stores()) return true;
    if (kind == kDeferred && !deferred_.empty()) {  // a warp's worth at a time
      for (int n = 0; n < 32 && !deferred_.empty(); ++n) {
        ready_.push(schedule_.random_order ? deferred_.pop_at(random() % deferred_.size()) : deferred_.pop());
      }
      return true;
    }
  }
  if (deferred_rounds_ < kQuietRounds && !deferred_polling_.empty()) {
    ++deferred_rounds_;
    while (!deferred_polling_.empty()) ready_.push(deferred_polling_.pop());
    return true;
  }
  if (schedule_.admit_on_stall) {
    for (auto& grid : grids_) {
      if (grid->started && grid->admitted < grid->blocks && !rank_dead(grid->launch.rank)) {
        admit(*grid, true);
        ++progress_;
        return true;
      }
    }
  }
  if (quiet_ <= kQuietRounds) return !ready_.empty();
  const bool someone_polls = !ready_.empty() || !deferred_polling_.empty();
  if (someone_polls && clock_read_ && clock_step_ < kClockLastStep) {
    clock_read_ = false;
    clock_step_ = clock_step_ ? clock_step_ * 2 : kClockFirstStep;
    clock_ns_ += clock_step_;
    quiet_ = deferred_rounds_ = 0;
    return true;
  }
  return false;
}

Outcome Machine::run() {
  outcome_ = Outcome::finished;
  report_.clear();
  stopped_ = false;
  scheduler_.adopt_running();
  progress_seen_ = ~uint64_t{0};
  quiet_ = deferred_rounds_ = 0;
  clock_step_ = 0;
  switches_at_start_ = switches_;
  const uint64_t limit =
      switches_ + static_cast<uint64_t>(schedule_.switch_limit ? schedule_.switch_limit : kSwitchLimit);
  start_grids();
  while (!stopped_) {
    if (Fiber* fiber = pick()) {
      enter(fiber);
    } else if (!unstall()) {
      break;
    }
    if (!exited_blocks_.empty()) {
      reap();
      start_grids();
    }
    if (switches_ > limit) {
      outcome_ = Outcome::livelock;
      report_ = format("gave up after %llu thread switches\n",
                       static_cast<unsigned long long>(switches_ - switches_at_start_)) +
                describe_stall();
      stopped_ = true;
    }
  }
  if (outcome_ == Outcome::finished || outcome_ == Outcome::fault) {
    bool stuck = false;
    for (auto& grid : grids_) stuck |= !grid->complete && !rank_dead(grid->launch.rank);
    if (stuck) {
      if (outcome_ == Outcome::finished) outcome_ = Outcome::deadlock;
      report_ += describe_stall();
    }
  }
  for (auto& grid : grids_) happens_after(grid.get());
  reset();
  return outcome_;
}

void Machine::reset() {
  for (Block* block : blocks_) {
    for (Fiber* fiber : block->fibers) {
      fiber->context.retire();
      free_fibers_.push_back(fiber);
    }
    block->cluster.reset();
    free_blocks_.push_back(block);
  }
  blocks_.clear();
  exited_blocks_.clear();
  ready_.clear();
  polling_.clear();
  deferred_.clear();
  deferred_polling_.clear();
  pending_copies_.clear();
  for (LateStores* queue : dirty_) {
    queue->items.clear();
    queue->dirty_index = SIZE_MAX;
  }
  dirty_.clear();
  grids_.clear();
  dead_ranks_.clear();
  running_ = nullptr;
  self = nullptr;
  serial_ = 0;
}

// ---- faults

bool Machine::rank_dead(int rank) const {
  return std::find(dead_ranks_.begin(), dead_ranks_.end(), rank) != dead_ranks_.end();
}

void Machine::stop_rank(const char* what) {
  Fiber* fiber = running_;
  Grid& grid = *fiber->block->grid;
  outcome_ = Outcome::fault;
  report_ += format("rank %d %s block (%u,%u,%u) thread %u: %s\n", grid.launch.rank, grid.launch.name.c_str(),
                    fiber->block_index.x, fiber->block_index.y, fiber->block_index.z, fiber->linear, what);
  dead_ranks_.push_back(grid.launch.rank);
  fiber->state = State::finished;
  // What the rank had not ordered before the fault is lost.
  for (Block* block : blocks_) {
    if (block->grid->launch.rank != grid.launch.rank) continue;
    for (Fiber* other : block->fibers) drop_stores(other->stores);
    drop_stores(block->stores);
    drop_stores(block->grid->stores);
  }
  for (Ring* ring : {&ready_, &polling_, &deferred_, &deferred_polling_}) {
    for (size_t n = ring->size(); n > 0; --n) {
      Fiber* other = ring->pop();
      if (other->block->grid->launch.rank != grid.launch.rank) ring->push(other);
    }
  }
  std::erase_if(pending_copies_, [&](const auto& copy) { return copy->rank == grid.launch.rank; });
  ++progress_;
  running_ = nullptr;
  fiber->context.switch_to(scheduler_);
  std::abort();
}

void Machine::stop_all(const std::string& message) {
  Fiber* fiber = running_;
  const Grid& grid = *fiber->block->grid;
  outcome_ = Outcome::misuse;
  report_ = format("rank %d %s block (%u,%u,%u) thread %u: ", grid.launch.rank, grid.launch.name.c_str(),
                   fiber->block_index.x, fiber->block_index.y, fiber->block_index.z, fiber->linear) +
            message;
  stopped_ = true;
  running_ = nullptr;
  fiber->context.switch_to(scheduler_);
  std::abort();
}

}  // namespace emulator
