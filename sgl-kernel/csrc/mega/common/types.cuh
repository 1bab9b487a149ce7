// SPDX-License-Identifier: Apache-2.0
// Scalar and vector types, qualifiers and shared-memory declarations. Raw PTX, __shared__ and CUDA builtins
// other than threadIdx, blockIdx, blockDim and gridDim occur in common/ alone; where the compiler is not a
// CUDA one, each header here takes its other half from sgl-kernel/emulator/, which provides the same names.
#pragma once

#if !defined(__CUDACC__) && !defined(__CUDACC_RTC__)
#include "emulator/types.h"
#else

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace mega {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;
using bf16 = __nv_bfloat16;
using bf16x2 = __nv_bfloat162;

}  // namespace mega

#define MEGA_DEVICE __device__ __forceinline__
// MEGA_KERNEL(gdn_front, threads, blocks_per_sm)(const bf16* x, ...) { body }
#define MEGA_KERNEL(name, threads, blocks_per_sm) \
  extern "C" __global__ void __launch_bounds__(threads, blocks_per_sm) name
// One object in the block's shared memory, 16-byte aligned, uninitialised: MEGA_SHARED(float[8], sums);
#define MEGA_SHARED(type, name)                        \
  __shared__ __align__(16) mega::Shared<type> name##_; \
  auto& name = name##_.value
// The launch's dynamic shared memory, 128-byte aligned.
#define MEGA_DYNAMIC_SHARED(pointer)                                    \
  extern __shared__ __align__(128) unsigned char mega_dynamic_shared[]; \
  unsigned char* pointer = mega_dynamic_shared
#define MEGA_UNROLL _Pragma("unroll")
#define MEGA_PRAGMA(text) _Pragma(#text)
#define MEGA_UNROLL_BY(count) MEGA_PRAGMA(unroll count)

namespace mega {

template <class T>
struct Shared {
  T value;
};

}  // namespace mega
#endif

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
#define MEGA_BLACKWELL 1
#else
#define MEGA_BLACKWELL 0
#endif

namespace mega {

template <bool condition, class Yes, class No>
struct SelectType {
  using type = Yes;
};
template <class Yes, class No>
struct SelectType<false, Yes, No> {
  using type = No;
};
template <bool condition, class Yes, class No>
using Select = typename SelectType<condition, Yes, No>::type;

}  // namespace mega
