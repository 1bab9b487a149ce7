// SPDX-License-Identifier: Apache-2.0
// Stores that wait in a queue until the memory model forces them out: a fence, a release, the end of the
// grid. Stores of one thread to one address stay in order; all others may pass each other.
#include <cstring>

#include "machine.h"

namespace emulator {

namespace {
bool overlaps(const LateStore& store, const volatile void* address, unsigned bytes) {
  const auto* begin = static_cast<const unsigned char*>(const_cast<const void*>(address));
  return store.address < begin + bytes && begin < store.address + store.bytes;
}
}  // namespace

void Machine::mark_dirty(LateStores& queue) {
  if (queue.dirty_index != SIZE_MAX) return;
  queue.dirty_index = dirty_.size();
  dirty_.push_back(&queue);
}

void Machine::mark_clean(LateStores& queue) {
  if (queue.dirty_index == SIZE_MAX) return;
  dirty_.back()->dirty_index = queue.dirty_index;
  dirty_[queue.dirty_index] = dirty_.back();
  dirty_.pop_back();
  queue.dirty_index = SIZE_MAX;
}

void Machine::delay_store(LateStores& queue, const LateStore& store) {
  queue.items.push_back(store);
  mark_dirty(queue);
}

void Machine::perform_all(LateStores& queue) {
  for (const LateStore& store : queue.items) std::memcpy(store.address, store.data, store.bytes);
  queue.items.clear();
  mark_clean(queue);
  ++progress_;
}

void Machine::perform_until(LateStores& queue, size_t last) {
  const LateStore chosen = queue.items[last];
  size_t kept = 0;
  for (size_t i = 0; i <= last; ++i) {
    const LateStore store = queue.items[i];
    if (overlaps(store, chosen.address, chosen.bytes)) {
      std::memcpy(store.address, store.data, store.bytes);
    } else {
      queue.items[kept++] = store;
    }
  }
  queue.items.erase(queue.items.begin() + static_cast<ptrdiff_t>(kept),
                    queue.items.begin() + static_cast<ptrdiff_t>(last + 1));
  if (queue.items.empty()) mark_clean(queue);
  ++progress_;
}

void Machine::perform_overlapping(LateStores& queue, const volatile void* address, unsigned bytes) {
  for (size_t i = queue.items.size(); i-- > 0;) {
    if (overlaps(queue.items[i], address, bytes)) {
      perform_until(queue, i);
      return;
    }
  }
}

void Machine::move_stores(LateStores& from, LateStores& to) {
  if (from.items.empty()) return;
  to.items.insert(to.items.end(), from.items.begin(), from.items.end());
  from.items.clear();
  mark_clean(from);
  mark_dirty(to);
}

void Machine::drop_stores(LateStores& queue) {
  queue.items.clear();
  mark_clean(queue);
}

bool Machine::perform_one_store() {
  if (dirty_.empty()) return false;
  LateStores& queue = *dirty_[random() % dirty_.size()];
  perform_until(queue, random() % queue.items.size());
  return true;
}

// Nothing else can move: one thread's stores in an ordered schedule, some of everybody's in a random one.
bool Machine::perform_stalled_stores() {
  if (dirty_.empty()) return false;
  if (!schedule_.random_order) {
    perform_all(*dirty_.front());
    return true;
  }
  for (size_t i = dirty_.size(); i-- > 0;) {
    LateStores& queue = *dirty_[i];
    for (size_t store = queue.items.size(); store-- > 0;) {
      if (store < queue.items.size() && (random() & 1)) perform_until(queue, store);
    }
  }
  return true;
}

void store_late(void* address, const void* data, unsigned bytes) {
  Machine& m = machine();
  m.progress();
  if (m.schedule().stores == When::early) {
    std::memcpy(address, data, bytes);
  } else {
    LateStore store;
    store.address = static_cast<unsigned char*>(address);
    store.bytes = static_cast<unsigned char>(bytes);
    std::memcpy(store.data, data, bytes);
    m.delay_store(m.running()->stores, store);
  }
  m.maybe_preempt();
}

void fence() {
  Machine& m = machine();
  Fiber* fiber = m.running();
  if (!fiber->block->stores.items.empty()) m.perform_all(fiber->block->stores);
  if (!fiber->stores.items.empty()) m.perform_all(fiber->stores);
  m.maybe_preempt();
}

void observe(const volatile void* address, unsigned bytes) {
  Machine& m = machine();
  Fiber* fiber = m.running();
  if (!fiber->block->stores.items.empty()) m.perform_overlapping(fiber->block->stores, address, bytes);
  if (!fiber->stores.items.empty()) m.perform_overlapping(fiber->stores, address, bytes);
}

}  // namespace emulator
