// SPDX-License-Identifier: Apache-2.0
// How the launcher enters a kernel: an array of pointers to the arguments, as cuLaunchKernel takes it.
#pragma once

#include <string>
#include <type_traits>
#include <utility>

namespace emulator {

template <class... P, size_t... I>
void invoke(void (*kernel)(P...), void** arguments, std::index_sequence<I...>) {
  kernel(*static_cast<std::remove_cvref_t<P>*>(arguments[I])...);
}

template <class... P>
void invoke(void (*kernel)(P...), void** arguments) {
  invoke(kernel, arguments, std::index_sequence_for<P...>{});
}

// One letter and the size of each parameter: p pointer, i integer, f floating point, s structure.
template <class... P>
std::string signature(void (*)(P...)) {
  std::string text;
  ((text += std::is_pointer_v<P>          ? "p"
            : std::is_integral_v<P>       ? "i"
            : std::is_floating_point_v<P> ? "f"
                                          : "s",
    text += std::to_string(sizeof(P)) + " "),
   ...);
  return text;
}

}  // namespace emulator

#define EMULATOR_ENTRY(kernel)                                                                 \
  extern "C" void emulator_enter(void** arguments) { ::emulator::invoke(&kernel, arguments); } \
  extern "C" const char* emulator_signature() {                                                \
    static const std::string text = ::emulator::signature(&kernel);                            \
    return text.c_str();                                                                       \
  }
