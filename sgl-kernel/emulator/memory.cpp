// SPDX-License-Identifier: Apache-2.0
// Shared memory, and ThreadSanitizer's happens-before edges.
#include <cstring>

#include "machine.h"

#if defined(EMULATOR_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

namespace emulator {

namespace {
constexpr size_t kSharedLimit = 232448;
constexpr size_t kSharedGuard = 256;

// ThreadSanitizer intercepts memset and would take the fill for an access of the running thread.
void fill(unsigned char* begin, size_t bytes) {
#if defined(EMULATOR_TSAN)
  for (volatile unsigned char* p = begin; p < begin + bytes; ++p) *p = 0xff;
#else
  std::memset(begin, 0xff, bytes);
#endif
}
}  // namespace

void* shared_static(const void* site, size_t bytes, size_t alignment) {
  Fiber* fiber = machine().running();
  Block& block = *fiber->block;
  for (const auto& [known, offset] : block.statics) {
    if (known == site) return block.shared + offset;
  }
  if (alignment < 16) alignment = 16;
  const size_t offset = (block.shared_used + alignment - 1) / alignment * alignment;
  if (offset + bytes > kSharedLimit) {
    misuse("%zu bytes of shared memory: a block has %zu at most", offset + bytes, kSharedLimit);
  }
  block.shared_used = offset + bytes;
  block.statics.emplace_back(site, offset);
  fill(block.shared + offset, bytes + kSharedGuard);
  return block.shared + offset;
}

unsigned char* shared_dynamic() { return machine().running()->block->shared; }

size_t shared_dynamic_bytes() { return machine().running()->block->grid->launch.shared_bytes; }

void* shared_of_cluster_rank(const void* own, unsigned rank) {
  Block& block = *machine().running()->block;
  const auto offset = static_cast<const unsigned char*>(own) - block.shared;
  if (offset < 0 || static_cast<size_t>(offset) >= kSharedLimit) {
    misuse("mapa of %p, which is not in the block's shared memory", own);
  }
  if (!block.cluster) {
    if (rank == 0) return const_cast<void*>(own);
    misuse("mapa to block %u of a cluster in a grid that was launched without clusters", rank);
  }
  if (rank >= block.cluster->blocks.size())
    misuse("mapa to block %u of a cluster of %zu", rank, block.cluster->blocks.size());
  return block.cluster->blocks[rank]->shared + offset;
}

void happens_before([[maybe_unused]] const volatile void* object) {
#if defined(EMULATOR_TSAN)
  __tsan_release(const_cast<void*>(object));
#endif
}

void happens_after([[maybe_unused]] const volatile void* object) {
#if defined(EMULATOR_TSAN)
  __tsan_acquire(const_cast<void*>(object));
#endif
}

}  // namespace emulator
