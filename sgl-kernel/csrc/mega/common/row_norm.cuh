// SPDX-License-Identifier: Apache-2.0
// Residual add and RMSNorm of one row, one block a row, eight columns a thread, with the rounding points of
// the stock layers (srt/layers/layernorm.py): RMSNorm adds in fp32, stores the residual rounded and norms the
// unrounded sum, gain w; GemmaRMSNorm rounds the sum to bf16 first and norms that, gain 1 + w.
#pragma once
#include "common/barrier.cuh"
#include "common/math.cuh"
#include "common/reduce.cuh"
#include "common/types.cuh"

namespace mega {

struct Columns {
  float value[8];

  static MEGA_DEVICE Columns of(uint4 words) {
    float2 a = unpack(words.x), b = unpack(words.y), c = unpack(words.z), d = unpack(words.w);
    return {{a.x, a.y, b.x, b.y, c.x, c.y, d.x, d.y}};
  }
  MEGA_DEVICE uint4 packed() const {
    return make_uint4(pack(value[0], value[1]), pack(value[2], value[3]), pack(value[4], value[5]),
                      pack(value[6], value[7]));
  }
};

struct NormedRow {
  uint4 residual, normed;
};

// `sums`: 32 floats of shared memory. All threads of the block take part; 8 * blockDim.x columns.
template <bool gemma, int threads>
MEGA_DEVICE NormedRow add_norm(const Columns& addend, uint4 residual, uint4 weight, float epsilon,
                               float (&sums)[32]) {
  Columns x = Columns::of(residual), gain = Columns::of(weight);
  float square = 0.0f;
  MEGA_UNROLL
  for (int i = 0; i < 8; ++i) {
    x.value[i] = addend.value[i] + x.value[i];
    if (gemma) x.value[i] = round_bf16(x.value[i]);
    square += x.value[i] * x.value[i];
  }
  NormedRow row;
  row.residual = x.packed();
  square = warp_sum(square);
  if ((threadIdx.x & 31) == 0) sums[threadIdx.x / 32] = square;
  block_sync();
  float total = 0.0f;
  MEGA_UNROLL
  for (int w = 0; w < threads / 32; ++w) total += sums[w];
  float inverse = rsqrt_fast(total * (1.0f / (8 * threads)) + epsilon);
  MEGA_UNROLL
  for (int i = 0; i < 8; ++i) {
    x.value[i] = x.value[i] * inverse * (gemma ? 1.0f + gain.value[i] : gain.value[i]);
  }
  row.normed = x.packed();
  return row;
}

}  // namespace mega
