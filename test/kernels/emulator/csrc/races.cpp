// SPDX-License-Identifier: Apache-2.0
// A program of its own for ThreadSanitizer: a block reduction with its barrier, and, with an argument,
// without.
#include "common/barrier.cuh"
#include "common/memory.cuh"
#include "emulator/entry.h"
#include "emulator/machine.h"

using namespace mega;

MEGA_KERNEL(with_barrier, 64, 1)(float* out) {
  MEGA_SHARED(float[64], cells);
  cells[threadIdx.x] = 1.0f + threadIdx.x;
  block_sync();
  out[threadIdx.x] = cells[63 - threadIdx.x];
}

MEGA_KERNEL(without_barrier, 64, 1)(float* out) {
  MEGA_SHARED(float[64], cells);
  cells[threadIdx.x] = 1.0f + threadIdx.x;
  out[threadIdx.x] = cells[63 - threadIdx.x];
}

// Message passing between two blocks through release and acquire.
MEGA_KERNEL(message, 32, 1)(float* data, u32* flag) {
  if (threadIdx.x != 0) return;
  if (blockIdx.x == 0) {
    data[0] = 42.0f;
    store_release(flag, 1);
  } else {
    while (load_acquire(flag) == 0) spin_pause();
    data[1] = data[0];
  }
}

template <class... P>
static int launch(void (*kernel)(P...), void (*enter)(void**), unsigned blocks, unsigned threads,
                  P... values) {
  emulator::Launch launch;
  launch.name = "kernel";
  launch.entry = enter;
  launch.grid = {blocks, 1, 1};
  launch.block = {threads, 1, 1};
  (launch.arguments.emplace_back(reinterpret_cast<unsigned char*>(&values),
                                 reinterpret_cast<unsigned char*>(&values) + sizeof values),
   ...);
  for (auto& argument : launch.arguments) launch.pointers.push_back(argument.data());
  (void)kernel;
  emulator::machine().configure(emulator::Schedule{});
  emulator::machine().enqueue(std::move(launch));
  return static_cast<int>(emulator::machine().run());
}

int main(int arguments, char**) {
  static float out[64];
  static u32 flag;
  if (arguments > 1) {
    return launch(&without_barrier, [](void** a) { emulator::invoke(&without_barrier, a); }, 1, 64, &out[0]);
  }
  int status = launch(&with_barrier, [](void** a) { emulator::invoke(&with_barrier, a); }, 1, 64, &out[0]);
  status |= launch(&message, [](void** a) { emulator::invoke(&message, a); }, 2, 32, &out[0], &flag);
  return status | (out[1] != 42.0f);
}
