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
  std::vector<LateStore> rest;
  for (size_t i = 0; i < queue.items.size(); ++i) {
    const LateStore& store = queue.items[i];
    if (i <= last && overlaps(store, chosen.address, chosen.bytes)) {
      std::memcpy(store.address, store.data, store.bytes);
    } else {
      rest.push_back(store);
    }
  }
  queue.items.swap(rest);
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

bool Machine::drain_one_random() {
  if (dirty_.empty()) return false;
  LateStores& queue = *dirty_[schedule_.random_order ? random() % dirty_.size() : 0];
  perform_until(queue, schedule_.random_order ? random() % queue.items.size() : 0);
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
