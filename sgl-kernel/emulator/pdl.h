// SPDX-License-Identifier: Apache-2.0
// Emulator side of common/pdl.cuh.
#pragma once

#include "types.h"

namespace mega {

MEGA_DEVICE void pdl_wait() { emulator::grid_wait(); }
MEGA_DEVICE void pdl_launch() { emulator::grid_trigger(); }

}  // namespace mega
