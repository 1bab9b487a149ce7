// SPDX-License-Identifier: Apache-2.0
// The machine as plain C functions, for ctypes.
#include <cstring>

#include "machine.h"

using emulator::machine;

extern "C" {

struct emulator_launch_request {
  const char* name;
  void (*entry)(void**);
  int32_t rank, stream;
  uint32_t grid[3], block[3];
  uint32_t cluster, shared_bytes;
  int32_t pdl, cooperative;
  uint32_t arguments;
  const void* const* values;
  const uint32_t* sizes;
};

void emulator_configure(const emulator::Schedule* schedule) { machine().configure(*schedule); }

void emulator_enqueue(const emulator_launch_request* request) {
  emulator::Launch launch;
  launch.name = request->name;
  launch.entry = request->entry;
  launch.rank = request->rank;
  launch.stream = request->stream;
  launch.grid = {request->grid[0], request->grid[1], request->grid[2]};
  launch.block = {request->block[0], request->block[1], request->block[2]};
  launch.cluster = request->cluster;
  launch.shared_bytes = request->shared_bytes;
  launch.pdl = request->pdl != 0;
  launch.cooperative = request->cooperative != 0;
  for (uint32_t i = 0; i < request->arguments; ++i) {
    const auto* bytes = static_cast<const unsigned char*>(request->values[i]);
    launch.arguments.emplace_back(bytes, bytes + request->sizes[i]);
  }
  for (auto& argument : launch.arguments) launch.pointers.push_back(argument.data());
  machine().enqueue(std::move(launch));
}

int emulator_run() { return static_cast<int>(machine().run()); }

const char* emulator_report() { return machine().report().c_str(); }

uint64_t emulator_switches() { return machine().switches(); }

void emulator_name_memory(const void* address, uint64_t bytes, const char* name) {
  machine().name_memory(address, bytes, name);
}

void emulator_forget_memory() { machine().forget_memory(); }

}  // extern "C"
