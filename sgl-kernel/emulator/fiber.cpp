// SPDX-License-Identifier: Apache-2.0
#include "fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#ifdef EMULATOR_TSAN
#include <sanitizer/tsan_interface.h>
#endif
#if !defined(__x86_64__) || defined(EMULATOR_UCONTEXT)
#define EMULATOR_USE_UCONTEXT 1
#include <ucontext.h>
#endif

namespace emulator {

#ifndef EMULATOR_USE_UCONTEXT
// Saves the callee-saved registers of the System V ABI. The floating-point control words stay as they are: no
// kernel changes them.
extern "C" void emulator_switch(void** save, void* load);
asm(R"(
.text
.globl emulator_switch
.type emulator_switch, @function
emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emulator_switch, .-emulator_switch
)");

void Context::prepare(unsigned char* stack, size_t bytes, void (*entry)()) {
  auto top = reinterpret_cast<uintptr_t>(stack + bytes) & ~uintptr_t{15};
  auto** slot = reinterpret_cast<void**>(top);
  *--slot = nullptr;  // the return address of `entry`, which never returns; keeps the ABI's alignment
  *--slot = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--slot = nullptr;
  stack_pointer_ = slot;
}
#else
void Context::prepare(unsigned char* stack, size_t bytes, void (*entry)()) {
  if (!stack_pointer_) stack_pointer_ = new ucontext_t;
  auto* context = static_cast<ucontext_t*>(stack_pointer_);
  getcontext(context);
  context->uc_stack.ss_sp = stack;
  context->uc_stack.ss_size = bytes;
  context->uc_link = nullptr;
  makecontext(context, entry, 0);
}
#endif

void Context::switch_to(Context& next) {
#ifdef EMULATOR_TSAN
  __tsan_switch_to_fiber(next.sanitizer_, __tsan_switch_to_fiber_no_sync);
#endif
#ifndef EMULATOR_USE_UCONTEXT
  emulator_switch(&stack_pointer_, next.stack_pointer_);
#else
  if (!stack_pointer_) stack_pointer_ = new ucontext_t;
  swapcontext(static_cast<ucontext_t*>(stack_pointer_), static_cast<ucontext_t*>(next.stack_pointer_));
#endif
}

void Context::announce() {
#ifdef EMULATOR_TSAN
  sanitizer_ = __tsan_create_fiber(0);
#endif
}

void Context::retire() {
#ifdef EMULATOR_TSAN
  if (sanitizer_) __tsan_destroy_fiber(sanitizer_);
  sanitizer_ = nullptr;
#endif
}

void Context::adopt_running() {
#ifdef EMULATOR_TSAN
  sanitizer_ = __tsan_get_current_fiber();
#endif
}

namespace {
constexpr uint64_t kMark = 0x5ca1ab1e0ddba11ull;
// Consecutive stacks start at different cache sets, else every thread's hottest lines compete for the same
// ones.
constexpr size_t kStride = kStackBytes + 13 * 64;
constexpr size_t kStacksPerMapping = 256;
unsigned char* free_mapping = nullptr;
size_t stacks_left = 0;
}  // namespace

unsigned char* new_stack() {
  if (stacks_left == 0) {
    void* memory = mmap(nullptr, kStride * kStacksPerMapping, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
      std::fprintf(stderr, "emulator: no memory for the stacks of %zu more threads\n", kStacksPerMapping);
      std::abort();
    }
    free_mapping = static_cast<unsigned char*>(memory);
    stacks_left = kStacksPerMapping;
  }
  unsigned char* stack = free_mapping;
  free_mapping += kStride;
  --stacks_left;
  *reinterpret_cast<uint64_t*>(stack) = kMark;
  return stack;
}

bool stack_intact(const unsigned char* stack) { return *reinterpret_cast<const uint64_t*>(stack) == kMark; }

}  // namespace emulator
