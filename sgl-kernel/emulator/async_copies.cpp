// SPDX-License-Identifier: Apache-2.0
// Copies that run beside the threads that issue them, and mbarriers, which count their bytes.
#include <cstring>

#include "machine.h"

namespace emulator {

namespace {

// An mbarrier's 64 bits: phase, initialised mark, expected and pending arrivals, pending bytes.
struct MBarrier {
  uint32_t phase : 1;
  uint32_t mark : 1;
  uint32_t expected : 15;
  uint32_t pending : 15;
  int32_t bytes;
};
static_assert(sizeof(MBarrier) == sizeof(uint64_t));

MBarrier& checked(const uint64_t* barrier) {
  auto& state = *reinterpret_cast<MBarrier*>(const_cast<uint64_t*>(barrier));
  if (!state.mark || state.expected == 0) misuse("mbarrier at %p is used before it is initialised", barrier);
  return state;
}

void advance(const uint64_t* barrier, MBarrier& state) {
  if (state.pending != 0 || state.bytes != 0) return;
  state.phase ^= 1;
  state.pending = state.expected;
  machine().wake_mbarrier(barrier);
}

void submit(const std::shared_ptr<AsyncCopy>& copy) { machine().start_copy(copy); }

std::vector<std::shared_ptr<AsyncCopy>>& open_group(CopyGroups& groups) {
  if (groups.empty()) groups.emplace_back();
  return groups.back();
}

void check_bulk(const void* a, const void* b, unsigned bytes) {
  if ((reinterpret_cast<uintptr_t>(a) | reinterpret_cast<uintptr_t>(b) | bytes) % 16) {
    misuse("bulk copy of %u bytes from %p to %p: addresses and size must be multiples of 16", bytes, b, a);
  }
}

}  // namespace

void Machine::start_copy(const std::shared_ptr<AsyncCopy>& copy) {
  copy->rank = running_->block->grid->launch.rank;
  ++progress_;
  if (schedule_.copies == When::early) {
    perform(*copy);
  } else {
    if (pending_copies_.size() > 256) std::erase_if(pending_copies_, [](const auto& c) { return c->done; });
    pending_copies_.push_back(copy);
  }
}

void Machine::perform(AsyncCopy& copy) {
  if (copy.done) return;
  copy.done = true;
  ++progress_;
  for (auto& earlier : copy.after) perform(*earlier);
  copy.after.clear();
  if (copy.bytes) {
    std::memcpy(copy.target, copy.immediate.empty() ? copy.source : copy.immediate.data(), copy.bytes);
  }
  if (copy.zero_bytes) std::memset(copy.target + copy.bytes, 0, copy.zero_bytes);
  if (copy.barrier) {
    auto& state = *reinterpret_cast<MBarrier*>(copy.barrier);
    if (copy.arrive_only) {
      --state.pending;
    } else {
      state.bytes -= static_cast<int32_t>(copy.bytes);
    }
    advance(copy.barrier, state);
  }
}

void Machine::wait_mbarrier(const uint64_t* barrier) {
  mbarrier_waiters_[barrier].push_back(running_);
  suspend(State::waiting);
}

void Machine::wake_mbarrier(const uint64_t* barrier) {
  auto found = mbarrier_waiters_.find(barrier);
  if (found == mbarrier_waiters_.end()) return;
  for (Fiber* fiber : found->second) {
    if (fiber->state == State::waiting) make_ready(fiber);
  }
  mbarrier_waiters_.erase(found);
}

void copy_async(void* shared, const void* global, unsigned bytes, unsigned source_bytes) {
  if (bytes != 4 && bytes != 8 && bytes != 16) misuse("cp.async of %u bytes: 4, 8 or 16", bytes);
  if ((reinterpret_cast<uintptr_t>(shared) | reinterpret_cast<uintptr_t>(global)) % bytes) {
    misuse("cp.async of %u bytes from %p to %p: not aligned", bytes, global, shared);
  }
  auto copy = std::make_shared<AsyncCopy>();
  copy->target = static_cast<unsigned char*>(shared);
  copy->source = static_cast<const unsigned char*>(global);
  copy->bytes = source_bytes < bytes ? source_bytes : bytes;
  copy->zero_bytes = bytes - copy->bytes;
  open_group(machine().running()->copies).push_back(copy);
  submit(copy);
}

void copy_async_commit() {
  auto& groups = machine().running()->copies;
  open_group(groups);
  groups.emplace_back();
}

void copy_async_wait(unsigned pending_groups) {
  Machine& m = machine();
  auto& groups = m.running()->copies;
  while (groups.size() > 1 + pending_groups) {
    for (auto& copy : groups.front()) m.perform(*copy);
    groups.pop_front();
  }
}

void copy_async_arrive(uint64_t* barrier) {
  checked(barrier);
  auto copy = std::make_shared<AsyncCopy>();
  for (auto& group : machine().running()->copies) {
    copy->after.insert(copy->after.end(), group.begin(), group.end());
  }
  copy->barrier = barrier;
  copy->arrive_only = true;
  submit(copy);
}

void mbarrier_init(uint64_t* barrier, unsigned arrivals) {
  if (arrivals == 0 || arrivals >= 1u << 15)
    misuse("mbarrier of %u arrivals: the emulator counts to 32767", arrivals);
  MBarrier state{};
  state.mark = 1;
  state.expected = state.pending = arrivals & 0x7fff;
  std::memcpy(barrier, &state, sizeof state);
  happens_before(barrier);
  machine().progress();
}

void mbarrier_invalidate(uint64_t* barrier) {
  checked(barrier);
  std::memset(barrier, 0, sizeof *barrier);
}

uint64_t mbarrier_arrive(uint64_t* barrier, unsigned arrivals, unsigned expected_bytes) {
  MBarrier& state = checked(barrier);
  if (arrivals > state.pending)
    misuse("mbarrier at %p: more arrivals than the %u it expects", barrier, state.expected);
  happens_before(barrier);
  const uint64_t phase = state.phase;
  state.bytes += static_cast<int32_t>(expected_bytes);
  state.pending -= arrivals & 0x7fff;
  machine().progress();
  advance(barrier, state);
  machine().maybe_preempt();
  return phase;
}

void mbarrier_expect(uint64_t* barrier, unsigned expected_bytes) {
  checked(barrier).bytes += static_cast<int32_t>(expected_bytes);
}

bool mbarrier_test(const uint64_t* barrier, unsigned parity) {
  const bool done = checked(barrier).phase != (parity & 1);
  if (done) happens_after(barrier);
  return done;
}

void mbarrier_wait(const uint64_t* barrier, unsigned parity) {
  Machine& m = machine();
  while (!mbarrier_test(barrier, parity)) {
    const MBarrier& state = checked(barrier);
    m.running()->wait = Wait{"mbarrier: phase, arrivals and bytes pending",
                             static_cast<int64_t>(parity & 1),
                             static_cast<int64_t>(state.pending),
                             static_cast<int64_t>(state.bytes),
                             0,
                             barrier};
    m.wait_mbarrier(barrier);
  }
}

void copy_bulk_in(void* shared, const void* global, unsigned bytes, uint64_t* barrier) {
  check_bulk(shared, global, bytes);
  checked(barrier);
  auto copy = std::make_shared<AsyncCopy>();
  copy->target = static_cast<unsigned char*>(shared);
  copy->source = static_cast<const unsigned char*>(global);
  copy->bytes = bytes;
  copy->barrier = barrier;
  submit(copy);
}

void copy_bulk_out(void* global, const void* shared, unsigned bytes) {
  check_bulk(global, shared, bytes);
  auto copy = std::make_shared<AsyncCopy>();
  copy->target = static_cast<unsigned char*>(global);
  copy->source = static_cast<const unsigned char*>(shared);
  copy->bytes = bytes;
  open_group(machine().running()->bulk_copies).push_back(copy);
  submit(copy);
}

void copy_bulk_commit() {
  auto& groups = machine().running()->bulk_copies;
  open_group(groups);
  groups.emplace_back();
}

void copy_bulk_wait(unsigned pending_groups, bool read_only) {
  Machine& m = machine();
  auto& groups = m.running()->bulk_copies;
  if (read_only) {  // the sources have been read; the targets may be written later
    for (size_t i = 0; i + 1 + pending_groups < groups.size(); ++i) {
      for (auto& copy : groups[i]) {
        if (!copy->done && copy->immediate.empty())
          copy->immediate.assign(copy->source, copy->source + copy->bytes);
      }
    }
    return;
  }
  while (groups.size() > 1 + pending_groups) {
    for (auto& copy : groups.front()) m.perform(*copy);
    groups.pop_front();
  }
}

void store_async(void* cluster_shared, const void* data, unsigned bytes, uint64_t* barrier) {
  checked(barrier);
  auto copy = std::make_shared<AsyncCopy>();
  copy->target = static_cast<unsigned char*>(cluster_shared);
  copy->bytes = bytes;
  copy->barrier = barrier;
  const auto* source = static_cast<const unsigned char*>(data);
  copy->immediate.assign(source, source + bytes);
  submit(copy);
}

}  // namespace emulator
