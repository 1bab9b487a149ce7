// SPDX-License-Identifier: Apache-2.0
// Emulator side of common/types.cuh: CUDA's qualifiers, vector types and built-in variables for a host
// compiler.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "runtime.h"

#define threadIdx (::emulator::self->thread_index)
#define blockIdx (::emulator::self->block_index)
#define blockDim (::emulator::self->block_dim)
#define gridDim (::emulator::self->grid_dim)

struct alignas(8) float2 {
  float x, y;
};
struct float3 {
  float x, y, z;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(4) ushort2 {
  unsigned short x, y;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct uint3 {
  unsigned x, y, z;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) ulonglong2 {
  unsigned long long x, y;
};

inline float2 make_float2(float x, float y) { return {x, y}; }
inline float3 make_float3(float x, float y, float z) { return {x, y, z}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline ushort2 make_ushort2(unsigned short x, unsigned short y) { return {x, y}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline ulonglong2 make_ulonglong2(unsigned long long x, unsigned long long y) { return {x, y}; }

namespace mega {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

// Storage only: arithmetic goes through to_float and to_bf16, as in device code.
struct bf16 {
  u16 bits;
};
struct alignas(4) bf16x2 {
  bf16 x, y;
};
struct f16 {
  u16 bits;
};

}  // namespace mega

#define MEGA_DEVICE inline __attribute__((always_inline))
#define MEGA_KERNEL(name, threads, blocks_per_sm) extern "C" __attribute__((visibility("hidden"))) void name
#define MEGA_SHARED(type, name)                        \
  static char name##_site;                             \
  auto& name = *static_cast<std::add_pointer_t<type>>( \
      ::emulator::shared_static(&name##_site, sizeof(std::type_identity_t<type>), 16))
#define MEGA_DYNAMIC_SHARED(pointer) unsigned char* pointer = ::emulator::shared_dynamic()
#define MEGA_UNROLL
#define MEGA_UNROLL_BY(count)
#define __restrict__ __restrict
#define __launch_bounds__(...)
