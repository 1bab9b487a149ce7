// SPDX-License-Identifier: Apache-2.0
// A fiber is a stack and a saved stack pointer. Fibers of one machine share one operating-system thread.
#pragma once

#include <cstddef>

namespace emulator {

class Context {
 public:
  Context() = default;
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  // Makes this context enter `entry` on the given stack when it is switched to. `entry` never returns.
  void prepare(unsigned char* stack, size_t bytes, void (*entry)());
  // Saves the running context in this one and continues `next`.
  void switch_to(Context& next);

  // ThreadSanitizer's own notion of this fiber.
  void announce();
  void retire();
  void adopt_running();

 private:
  void* stack_pointer_ = nullptr;
  void* sanitizer_ = nullptr;
};

// Stacks come from large mappings and are never returned: memory is touched only as deep as a kernel's frames
// reach.
constexpr size_t kStackBytes = 64 * 1024;
unsigned char* new_stack();
// The lowest word of a stack holds a mark; it is gone once a kernel's frames went past the end.
bool stack_intact(const unsigned char* stack);

}  // namespace emulator
