// SPDX-License-Identifier: Apache-2.0
// Entry of a covered step: x = hidden + residual in bf16 and the sum of squares of each 16 columns, which the
// layers' kernels keep up from then on. One block a row.
//
// Constants: HIDDEN.
#include "common/barrier.cuh"
#include "common/math.cuh"
#include "common/pdl.cuh"
#include "common/reduce.cuh"

namespace mega {

constexpr int hidden = MEGA_HIDDEN;
constexpr int threads = 256;
static_assert(hidden % 8 == 0, "a lane takes 8 columns");

// hidden_in, residual (may be null), x: [rows, HIDDEN] bf16; square_sums: [rows, HIDDEN / 16] fp32.
MEGA_KERNEL(stream_entry, threads, 2)(const bf16* hidden_in, const bf16* residual, bf16* x,
                                      float* square_sums) {
  pdl_launch();
  pdl_wait();
  int row = blockIdx.x, columns = hidden / 8;
  for (int base = 0; base < columns; base += threads) {  // whole warps: the sums exchange lanes
    int vector = base + threadIdx.x;
    bool live = vector < columns;
    float square = 0.0f;
    if (live) {
      int place = row * hidden + 8 * vector;
      uint4 a = load_shared_by_step(hidden_in + place);
      uint4 b = residual ? load_shared_by_step(residual + place) : make_uint4(0, 0, 0, 0);
      u32 in[4] = {a.x, a.y, a.z, a.w}, add[4] = {b.x, b.y, b.z, b.w}, out[4];
      MEGA_UNROLL
      for (int i = 0; i < 4; ++i) {
        float2 u = unpack(in[i]), v = unpack(add[i]);
        out[i] = pack(u.x + v.x, u.y + v.y);
        float2 sum = unpack(out[i]);
        square += sum.x * sum.x + sum.y * sum.y;
      }
      store_vector(x + place, make_uint4(out[0], out[1], out[2], out[3]));
    }
    square = warp_sum<2>(square);
    if (live && vector % 2 == 0) square_sums[row * (hidden / 16) + vector / 2] = square;
  }
}

}  // namespace mega
