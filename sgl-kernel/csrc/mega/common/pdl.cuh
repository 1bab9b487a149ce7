// SPDX-License-Identifier: Apache-2.0
// Programmatic dependent launch. pdl_launch lets the next kernel of the stream start its blocks; pdl_wait
// returns when every earlier kernel that this one depends on has completed and its writes are visible. A
// kernel calls pdl_wait in every thread that reads or writes what the step shares, and exits no block before
// it.
#pragma once
#include "common/types.cuh"

#if !defined(__CUDACC__) && !defined(__CUDACC_RTC__)
#include "emulator/pdl.h"
#else

namespace mega {

MEGA_DEVICE void pdl_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
MEGA_DEVICE void pdl_launch() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

}  // namespace mega
#endif
