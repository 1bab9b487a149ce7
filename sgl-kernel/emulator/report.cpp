// SPDX-License-Identifier: Apache-2.0
// Who waits for what, when nothing can move.
#include <algorithm>
#include <map>
#include <tuple>

#include "machine.h"

namespace emulator {

void Machine::name_memory(const void* address, size_t bytes, const char* name) {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  names_.push_back({begin, begin + bytes, name});
}

std::string Machine::describe_address(const volatile void* address) const {
  const auto value = reinterpret_cast<uintptr_t>(address);
  for (const Name& name : names_) {
    if (value >= name.begin && value < name.end)
      return format("%s + 0x%zx", name.name.c_str(), value - name.begin);
  }
  return format("0x%zx", value);
}

std::string Machine::describe_wait(const Fiber& fiber) const {
  const Wait& wait = fiber.wait;
  const Block& block = *fiber.block;
  std::string text = wait.what[0] ? wait.what : "not started";
  for (int64_t number : {wait.a, wait.b, wait.c}) {
    if (number >= 0) text += format(" %lld", static_cast<long long>(number));
  }
  if (wait.mask) {
    uint32_t missing = wait.mask;
    for (const auto& group : block.warps[fiber.linear / 32].groups) {
      if (group->mask == wait.mask)
        missing = wait.mask & ~(group->arrived | block.warps[fiber.linear / 32].exited);
    }
    return text + format(", lanes %08x have not come", missing);
  }
  for (const Barrier& barrier : block.barriers) {
    if (wait.address == &barrier) {
      return text + format(", %u of %u threads have come", barrier.arrived,
                           barrier.expected ? barrier.expected : block.live);
    }
  }
  if (fiber.state == State::ready && fiber.loaded) {
    text += format(", last read 0x%llx at ", static_cast<unsigned long long>(fiber.loaded_value)) +
            describe_address(fiber.loaded);
  }
  return text;
}

std::string Machine::describe_stall() const {
  using Key = std::tuple<int, unsigned, unsigned, std::string>;
  std::map<Key, std::vector<unsigned>> groups;
  std::map<unsigned, const Grid*> grids;
  for (const Block* block : blocks_) {
    const Grid& grid = *block->grid;
    if (rank_dead(grid.launch.rank)) continue;
    grids[grid.serial] = &grid;
    for (const Fiber* fiber : block->fibers) {
      if (fiber->state == State::finished) continue;
      groups[{grid.launch.rank, grid.serial, block->index, describe_wait(*fiber)}].push_back(fiber->linear);
    }
  }
  std::string text;
  size_t lines = 0;
  for (auto& [key, threads] : groups) {
    if (++lines > 64) {
      text += format("  and %zu more\n", groups.size() - 64);
      break;
    }
    const auto& [rank, serial, block, wait] = key;
    const Dim3& dim = grids[serial]->launch.grid;
    text +=
        format("  rank %d %s (grid %u) block (%u,%u,%u) threads ", rank, grids[serial]->launch.name.c_str(),
               serial, block % dim.x, block / dim.x % dim.y, block / (dim.x * dim.y));
    std::sort(threads.begin(), threads.end());
    for (size_t i = 0; i < threads.size();) {
      size_t j = i;
      while (j + 1 < threads.size() && threads[j + 1] == threads[j] + 1) ++j;
      text += format(i ? ",%u" : "%u", threads[i]);
      if (j > i) text += format("-%u", threads[j]);
      i = j + 1;
    }
    text += ": " + wait + "\n";
  }
  for (const auto& grid : grids_) {
    if (grid->complete || rank_dead(grid->launch.rank)) continue;
    if (!grid->started) {
      text += format("  rank %d %s (grid %u): not started, its predecessor in the stream is not done\n",
                     grid->launch.rank, grid->launch.name.c_str(), grid->serial);
    } else if (grid->admitted < grid->blocks) {
      text += format("  rank %d %s (grid %u): %u of %u blocks were never resident\n", grid->launch.rank,
                     grid->launch.name.c_str(), grid->serial, grid->blocks - grid->admitted, grid->blocks);
    }
  }
  return text;
}

}  // namespace emulator
