// SPDX-License-Identifier: Apache-2.0
// ThreadSanitizer builds only: the runtime is not instrumented, but the C library's calls within it are.
#ifdef EMULATOR_TSAN
extern "C" const char* __tsan_default_suppressions() {
  return "race:wait_at\n"
         "race:_M_realloc_insert\n"
         "race:__relocate_a_1\n"
         "race:emulator::warp_arrive\n";
}
#endif
