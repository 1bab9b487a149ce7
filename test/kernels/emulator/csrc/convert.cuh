// SPDX-License-Identifier: Apache-2.0
// The emulator's conversions over whole ranges, one thread a value, and the GPU's own where there is one.
#pragma once
#include "common/types.cuh"

#if !defined(__CUDACC__) && !defined(__CUDACC_RTC__)
#include "emulator/convert.h"
#define CONVERT_E4M3(x) emulator::float_to_e4m3(x)
#define CONVERT_E5M2(x) emulator::float_to_e5m2(x)
#define CONVERT_BF16(x) emulator::float_to_bf16(x)
#define CONVERT_F16(x) emulator::float_to_f16(x)
#define CONVERT_E2M1(x) emulator::float_to_e2m1(x)
#define BITS_FLOAT(x) emulator::float_of_bits(x)
#else
#include <cuda_fp8.h>
#define CONVERT_E4M3(x) __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3)
#define CONVERT_E5M2(x) __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2)
#define CONVERT_BF16(x) __bfloat16_as_ushort(__float2bfloat16(x))
#define CONVERT_F16(x) __half_as_ushort(__float2half(x))
#define CONVERT_E2M1(x) 0
#define BITS_FLOAT(x) __uint_as_float(x)
#endif

using namespace mega;

// Thread i converts the fp32 whose bits are first + i * step.
MEGA_KERNEL(convert_floats, 256, 1)(u32 first, u32 step, u8* e4m3, u8* e5m2, u16* bf16_bits, u16* f16_bits,
                                    u8* e2m1) {
  u32 i = blockIdx.x * 256 + threadIdx.x;
  float x = BITS_FLOAT(first + i * step);
  e4m3[i] = CONVERT_E4M3(x);
  e5m2[i] = CONVERT_E5M2(x);
  bf16_bits[i] = CONVERT_BF16(x);
  f16_bits[i] = CONVERT_F16(x);
  e2m1[i] = CONVERT_E2M1(x);
}
