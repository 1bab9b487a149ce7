// SPDX-License-Identifier: Apache-2.0
// Warp operations, block and cluster barriers, programmatic dependence.
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "machine.h"

namespace emulator {

namespace {

WarpGroup& group_of(Warp& warp, uint32_t mask) {
  for (auto& group : warp.groups) {
    if (group->mask == mask) return *group;
  }
  for (auto& group : warp.groups) {  // reuse one that no lane is inside of
    if (!group->arrived && warp.groups.size() > 64) {
      group->mask = mask;
      return *group;
    }
  }
  warp.groups.push_back(std::make_unique<WarpGroup>());
  warp.groups.back()->mask = mask;
  return *warp.groups.back();
}

const char* name_of(WarpOp op) {
  switch (op) {
    case WarpOp::sync:
      return "__syncwarp";
    case WarpOp::shuffle:
      return "warp shuffle";
    case WarpOp::vote:
      return "warp vote";
    case WarpOp::match:
      return "warp match";
    case WarpOp::reduce:
      return "warp reduce";
    case WarpOp::mma:
      return "tile MMA";
    case WarpOp::elect:
      return "elect";
  }
  return "warp operation";
}

Warp& running_warp() {
  Fiber* fiber = machine().running();
  return fiber->block->warps[fiber->linear / 32];
}

}  // namespace

void Machine::release_warp_group(Block& block, unsigned warp, WarpGroup& group) {
  const unsigned base = warp * 32;
  const uint32_t lanes = group.arrived;
  group.exchange[group.generation & 1].present = lanes;
  group.arrived = 0;
  ++group.generation;
  for (unsigned lane = 0; lane < 32; ++lane) {
    if (!(lanes >> lane & 1)) continue;
    Fiber* fiber = block.fibers[base + lane];
    if (schedule_.stores != When::early) move_stores(fiber->stores, block.stores);
    if (fiber != running_) make_ready(fiber);
  }
  ++progress_;
}

WarpArrival warp_arrive(uint32_t mask, WarpOp op, uint64_t value, const void* bulk, unsigned bulk_bytes) {
  Fiber* fiber = machine().running();
  Warp& warp = running_warp();
  const unsigned lane = fiber->linear & 31;
  if (!(mask >> lane & 1)) misuse("%s: lane %u is not in its own mask %08x", name_of(op), lane, mask);
  WarpGroup& group = group_of(warp, mask);
  if (group.arrived && group.op != op) {
    misuse("lane %u calls %s where lanes %08x of its warp call %s", lane, name_of(op), group.arrived,
           name_of(group.op));
  }
  group.op = op;
  group.arrived |= 1u << lane;
  WarpExchange& exchange = group.exchange[group.generation & 1];
  exchange.values[lane] = value;
  if (bulk_bytes) std::memcpy(exchange.bulk[lane], bulk, bulk_bytes);
  happens_before(&group);
  fiber->wait = Wait{name_of(op), -1, -1, -1, mask, nullptr};
  return {&exchange, (mask & ~(group.arrived | warp.exited)) == 0};
}

void warp_release(uint32_t mask) {
  Machine& m = machine();
  Fiber* fiber = m.running();
  WarpGroup& group = group_of(running_warp(), mask);
  happens_after(&group);
  happens_before(&group);
  m.release_warp_group(*fiber->block, fiber->linear / 32, group);
  m.maybe_preempt();
}

void warp_wait(uint32_t mask) {
  WarpGroup& group = group_of(running_warp(), mask);
  machine().suspend(State::waiting);
  happens_after(&group);
}

void Machine::release_barrier(Block& block, Barrier& barrier) {
  barrier.arrived = 0;
  barrier.expected = 0;
  barrier.result = barrier.reduction;
  if (schedule_.stores != When::early) {
    for (Fiber* fiber : block.fibers) move_stores(fiber->stores, block.stores);
  }
  for (Fiber* waiting : barrier.waiting) make_ready(waiting);
  barrier.waiting.clear();
  ++progress_;
}

namespace {

Barrier& arrive_at(unsigned id, unsigned threads) {
  Fiber* fiber = machine().running();
  Block& block = *fiber->block;
  if (id >= 16) misuse("named barrier %u: a block has barriers 0 to 15", id);
  if (threads % 32) misuse("named barrier %u of %u threads: not a multiple of 32", id, threads);
  Barrier& barrier = block.barriers[id];
  if (barrier.arrived && barrier.expected != threads) {
    misuse("named barrier %u: %u threads expected here, %u elsewhere", id, threads, barrier.expected);
  }
  barrier.expected = threads;
  happens_before(&barrier);
  ++barrier.arrived;
  return barrier;
}

bool complete(const Block& block, const Barrier& barrier) {
  return barrier.arrived == (barrier.expected ? barrier.expected : block.live);
}

unsigned wait_at(unsigned id, unsigned threads, unsigned value, int kind) {
  Machine& m = machine();
  Fiber* fiber = m.running();
  Block& block = *fiber->block;
  Barrier& barrier = arrive_at(id, threads);
  if (barrier.arrived == 1) barrier.reduction = kind == 1 ? 1 : 0;
  if (kind == 0) barrier.reduction += value != 0;
  if (kind == 1) barrier.reduction &= value != 0;
  if (kind == 2) barrier.reduction |= value != 0;
  fiber->wait = Wait{id == 0 ? "__syncthreads" : "named barrier", id, -1, -1, 0, &barrier};
  if (complete(block, barrier)) {
    m.release_barrier(block, barrier);
    happens_after(&barrier);
    const unsigned result = barrier.result;
    m.maybe_preempt();
    return result;
  }
  barrier.waiting.push_back(fiber);
  m.suspend(State::waiting);
  happens_after(&barrier);
  return barrier.result;
}

}  // namespace

void block_barrier(unsigned id, unsigned threads) { wait_at(id, threads, 0, 0); }

unsigned block_reduce(unsigned value, int kind) { return wait_at(0, 0, value, kind); }

void block_barrier_arrive(unsigned id, unsigned threads) {
  Machine& m = machine();
  Block& block = *m.running()->block;
  Barrier& barrier = arrive_at(id, threads);
  if (complete(block, barrier)) m.release_barrier(block, barrier);
}

void cluster_arrive() {
  Machine& m = machine();
  Fiber* fiber = m.running();
  if (!fiber->block->cluster) misuse("cluster barrier in a grid that was launched without clusters");
  Cluster& cluster = *fiber->block->cluster;
  happens_before(&cluster);
  fiber->cluster_generation = cluster.generation;
  if (++cluster.arrived == cluster.live) {
    cluster.arrived = 0;
    ++cluster.generation;
    for (Fiber* waiting : cluster.waiting) m.make_ready(waiting);
    cluster.waiting.clear();
    m.progress();
  }
}

void cluster_wait() {
  Machine& m = machine();
  Fiber* fiber = m.running();
  if (!fiber->block->cluster) misuse("cluster barrier in a grid that was launched without clusters");
  Cluster& cluster = *fiber->block->cluster;
  while (cluster.generation == fiber->cluster_generation) {
    fiber->wait = Wait{"cluster barrier", -1, -1, -1, 0, &cluster};
    cluster.waiting.push_back(fiber);
    m.suspend(State::waiting);
  }
  happens_after(&cluster);
}

void grid_trigger() {
  Machine& m = machine();
  Block& block = *m.running()->block;
  if (block.triggered) return;
  block.triggered = true;  // the first call of any thread counts for its block
  ++block.grid->triggered;
  m.progress();
  m.start_grids();
}

void grid_wait() {
  Machine& m = machine();
  Fiber* fiber = m.running();
  Grid* grid = fiber->block->grid;
  if (!grid->launch.pdl || !grid->predecessor) return;
  if (!grid->predecessor->complete) {
    fiber->wait = Wait{"griddepcontrol.wait for grid", grid->predecessor->serial, -1, -1, 0, nullptr};
    grid->predecessor->dependents.push_back(fiber);
    m.suspend(State::waiting);
  }
  happens_after(grid->predecessor);
}

void poll(const char* what, int64_t a, int64_t b, int64_t c) {
  Machine& m = machine();
  m.running()->wait = Wait{what, a, b, c, 0, nullptr};
  m.suspend(State::polling);
}

void note_load(const volatile void* address, uint64_t value) {
  Machine& m = machine();
  Fiber* fiber = m.running();
  fiber->loaded = address;
  fiber->loaded_value = value;
  // A loop that forgets to say that it waits is found by its loads.
  constexpr unsigned kLoadsPerSwitch = 4096;
  if (++fiber->loads_since_switch >= kLoadsPerSwitch) {
    poll("visible loads in a loop");
  } else {
    m.maybe_preempt();
  }
}

void note_store(const volatile void*) {
  Machine& m = machine();
  m.progress();
  m.maybe_preempt();
}

uint64_t now_ns() { return machine().read_clock(); }

void fault(const char* what) { machine().stop_rank(what); }

void misuse(const char* pattern, ...) {
  va_list arguments;
  va_start(arguments, pattern);
  char text[512];
  std::vsnprintf(text, sizeof text, pattern, arguments);
  va_end(arguments);
  machine().stop_all(text);
}

}  // namespace emulator
