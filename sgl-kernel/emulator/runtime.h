// SPDX-License-Identifier: Apache-2.0
// What kernel code sees of the emulator: the running CUDA thread and the operations that may suspend it.
//
// Everything below that can switch threads is defined in the runtime library, never inline, so that kernel
// code can be instrumented (ThreadSanitizer) while the scheduler is not.
#pragma once

#include <cstddef>
#include <cstdint>

namespace emulator {

struct Dim3 {
  unsigned x, y, z;
  constexpr Dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

// The part of a CUDA thread that kernel code reads inline. The scheduler's part derives from it.
struct Thread {
  Dim3 thread_index{0, 0, 0};
  Dim3 block_index{0, 0, 0};
  Dim3 block_dim;
  Dim3 grid_dim;
  unsigned linear = 0;        // linear thread index within the block
  unsigned cluster_rank = 0;  // index of the block within its cluster
  unsigned cluster_size = 1;
  unsigned cluster_index = 0;
};

extern Thread* self;  // the running thread

// Values of one warp-wide operation: `values[lane]` is what each participating lane passed in.
struct WarpExchange {
  uint64_t values[32];
  uint32_t present;                        // the lanes that took part; set when the operation completes
  alignas(64) unsigned char bulk[32][64];  // fragments of a tile MMA
  uint32_t scratch[256];                   // results computed once for the whole warp
};

enum class WarpOp : uint8_t { sync, shuffle, vote, match, reduce, mma, elect };

// A warp operation has two halves. `warp_arrive` records the lane's value; every lane of `mask` must call
// with the same `op`. `last` is true in the lane that arrives last: it may compute for all, then calls
// `warp_release`; the others call `warp_wait`. The exchange stays valid until the lane's next warp operation.
// Lanes that have exited are not waited for.
struct WarpArrival {
  WarpExchange* exchange;
  bool last;
};
WarpArrival warp_arrive(uint32_t mask, WarpOp op, uint64_t value, const void* bulk, unsigned bulk_bytes);
void warp_wait(uint32_t mask);
void warp_release(uint32_t mask);

void block_barrier(unsigned id, unsigned threads);  // bar.sync; threads 0: every live thread of the block
void block_barrier_arrive(unsigned id, unsigned threads);  // bar.arrive
unsigned block_reduce(unsigned value, int kind);           // 0: count, 1: and, 2: or
void cluster_arrive();
void cluster_wait();

void* shared_static(const void* site, size_t bytes, size_t alignment);
unsigned char* shared_dynamic();
size_t shared_dynamic_bytes();
void* shared_of_cluster_rank(const void* own, unsigned rank);  // mapa

// A wait loop calls this once per failed try. `what` and the three numbers name the wait in reports.
void poll(const char* what, int64_t a = -1, int64_t b = -1, int64_t c = -1);
void note_load(const volatile void* address, uint64_t value);  // remembered for reports; may preempt
void note_store(const volatile void* address);                 // counts as progress; may preempt
uint64_t now_ns();  // virtual time, moved on when nothing else can move

[[noreturn]] void fault(const char* what);          // the rank dies here, as on a store to address 0x0
[[noreturn]] void misuse(const char* format, ...);  // the kernel broke a rule of the programming model

// Stores that the memory model lets the hardware perform late. `store_late` performs at once in schedules
// that do not delay stores. `fence` performs those of this thread and those it has seen through a block
// barrier.
void store_late(void* address, const void* data, unsigned bytes);
void fence();
void observe(const volatile void* address, unsigned bytes);  // before a load: own late stores become visible

void grid_trigger();  // griddepcontrol.launch_dependents
void grid_wait();     // griddepcontrol.wait

// Asynchronous copies: performed early, late or at a random moment, as the schedule says.
void copy_async(void* shared, const void* global, unsigned bytes, unsigned source_bytes);  // cp.async
void copy_async_commit();
void copy_async_wait(unsigned pending_groups);
void mbarrier_init(uint64_t* barrier, unsigned arrivals);
void mbarrier_invalidate(uint64_t* barrier);
uint64_t mbarrier_arrive(uint64_t* barrier, unsigned arrivals, unsigned expected_bytes);
void mbarrier_expect(uint64_t* barrier, unsigned expected_bytes);
bool mbarrier_test(const uint64_t* barrier, unsigned parity);
void mbarrier_wait(const uint64_t* barrier, unsigned parity);
void copy_bulk_in(void* shared, const void* global, unsigned bytes,
                  uint64_t* barrier);                                  // cp.async.bulk, global source
void copy_bulk_out(void* global, const void* shared, unsigned bytes);  // cp.async.bulk, bulk group
void copy_bulk_commit();
void copy_bulk_wait(unsigned pending_groups, bool read_only);
void copy_async_arrive(uint64_t* barrier);  // cp.async.mbarrier.arrive.noinc
void store_async(void* cluster_shared, const void* data, unsigned bytes, uint64_t* barrier);  // st.async

// ThreadSanitizer edges, no-ops in other builds.
void happens_before(const volatile void* object);
void happens_after(const volatile void* object);

}  // namespace emulator
