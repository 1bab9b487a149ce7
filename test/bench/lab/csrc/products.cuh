// SPDX-License-Identifier: Apache-2.0
// Lab: y[m, n] = sum_k W[n, k] x[m, k] through mma.sync on row-major weights, with no repacking, in bf16, e4m3 (a
// scale for each weight row) or NVFP4 (e2m1, an e4m3 scale for 16 columns, one for all). m is at most 16.
//
// As in common/gemv.cuh the order of k within a tensor-core product is free, so the 16 bytes that a lane loads are
// fragments of 2, 4 or 8 products. Activations are bf16 for bf16 weights, else fp16.
//
// Constants: FORMAT (0 bf16, 1 e4m3, 2 NVFP4), ROWS, N, K, DEPTH, BLOCKS.
#include "common/dequant.cuh"
#include "common/gemv.cuh"
#include "common/math.cuh"
#include "common/pdl.cuh"
#include "common/reduce.cuh"

namespace mega {

constexpr int format = MEGA_FORMAT, rows = MEGA_ROWS, n = MEGA_N, k = MEGA_K;
constexpr int warps = 8, run = k / warps;
constexpr int lane_columns = 8 << format;  // in 16 bytes
constexpr int step = 4 * lane_columns, steps = run / step, depth = MEGA_DEPTH < steps ? MEGA_DEPTH : steps;
constexpr int groups = (rows + 7) / 8, group_rows = rows < 8 ? rows : 8, pieces = lane_columns / 8;
constexpr int row_bytes = format == 0 ? 2 * k : format == 1 ? k : k / 2;
constexpr int stride = run + 32;  // of a staged row, padded against bank conflicts
static_assert(n % 16 == 0 && k % (warps * step) == 0, "tiles and runs are whole");

// e2m1 as fp16 is the value times 2^-14. 2^7 goes into the block scale, which then still fits fp16 (448 * 2^7), and
// 2^7 into the output.
constexpr float output_shift = format == 2 ? 128.0f : 1.0f;

// One lane's 16 bytes of one weight row, and its two block scales.
struct Part {
  uint4 bytes;
  u32 scales;
};

struct Weights {
  const u8 *row, *scale;

  MEGA_DEVICE Part load(int i) const {
    Part part;
    part.bytes = load_stream(row + 64 * i);
    part.scales = format == 2 ? *reinterpret_cast<const u16*>(scale + 8 * i) : 0;
    return part;
  }
};

// The four fp16 pairs of eight columns, piece j of the part. NVFP4's pairs are columns (0, 4), (1, 5), (2, 6), (3, 7).
MEGA_DEVICE void columns_of(const Part& part, int j, u32 (&pair)[4]) {
  const u32 word[4] = {part.bytes.x, part.bytes.y, part.bytes.z, part.bytes.w};
  if constexpr (format == 0) {
    MEGA_UNROLL
    for (int p = 0; p < 4; ++p) pair[p] = word[p];
  } else if constexpr (format == 1) {
    MEGA_UNROLL
    for (int p = 0; p < 4; ++p) pair[p] = e4m3x2_to_f16x2((word[2 * j + p / 2] >> (16 * (p & 1))) & 0xffffu);
  } else {
    e2m1x8_to_f16x2(word[j], pair);
    u32 both = multiply_f16x2(e4m3x2_to_f16x2(part.scales), 0x58005800u);  // times 2^7
    u32 scale = j < 2 ? (both & 0xffffu) * 0x10001u : (both >> 16) * 0x10001u;
    MEGA_UNROLL
    for (int p = 0; p < 4; ++p) pair[p] = multiply_f16x2(pair[p], scale);
  }
}

// Eight activations in the order of columns_of.
MEGA_DEVICE uint4 in_order(uint4 v) {
  if constexpr (format != 2) return v;
  return make_uint4((v.x & 0xffffu) | (v.z << 16), (v.x >> 16) | (v.z & 0xffff0000u), (v.y & 0xffffu) | (v.w << 16),
                    (v.y >> 16) | (v.w & 0xffff0000u));
}

// Grid: N / 16. x: [ROWS, K]; w: [N, row_bytes]; scales: [N, K / 16] e4m3 (NVFP4) or null; row_scale: [N] fp32 (e4m3)
// or null; y: [ROWS, N] fp32.
MEGA_KERNEL(product, 32 * warps, MEGA_BLOCKS)
(const u16* x, const u8* w, const u8* scales, const float* row_scale, float* y, float global_scale) {
  MEGA_DYNAMIC_SHARED(dynamic);
  using Sums = TileSums<warps, group_rows>[groups];
  MEGA_SHARED(Sums, sums);
  int warp = threadIdx.x / 32, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  i64 first = static_cast<i64>(blockIdx.x) * 16 + g;
  auto at = [&](i64 row) {
    return Weights{w + row * row_bytes + (warp * run * row_bytes) / k + 16 * t,
                   scales + row * (k / 16) + warp * (run / 16) + 2 * t};
  };
  Weights low_row = at(first), high_row = at(first + 8);
  Part low[depth], high[depth];
  MEGA_UNROLL
  for (int i = 0; i < depth; ++i) low[i] = low_row.load(i), high[i] = high_row.load(i);
  warp_sync();
  pdl_launch();
  pdl_wait();

  u16* staged = reinterpret_cast<u16*>(dynamic) + warp * rows * stride;
  for (int m = 0; m < rows; ++m) {
    for (int column = 8 * lane; column < run; column += 256) {
      int i = column / step, owner = column % step / lane_columns, j = column % lane_columns / 8;
      uint4 v = load_shared_by_step(x + m * k + warp * run + column);
      *reinterpret_cast<uint4*>(staged + m * stride + i * step + 32 * j + 8 * owner) = in_order(v);
    }
  }
  warp_sync();

  float c[groups][2][4] = {};
  MEGA_UNROLL
  for (int i = 0; i < steps; ++i) {
    Part a = low[i % depth], b = high[i % depth];
    if (i + depth < steps) low[i % depth] = low_row.load(i + depth), high[i % depth] = high_row.load(i + depth);
    MEGA_UNROLL
    for (int j = 0; j < pieces; ++j) {
      u32 p[4], q[4];
      columns_of(a, j, p);
      columns_of(b, j, q);
      MEGA_UNROLL
      for (int group = 0; group < groups; ++group) {
        int m = 8 * group + g;
        uint4 v = m < rows ? *reinterpret_cast<const uint4*>(staged + m * stride + i * step + 32 * j + 8 * t)
                           : make_uint4(0, 0, 0, 0);
        if constexpr (format == 0) {
          mma_bf16(c[group][0], p[0], q[0], p[1], q[1], v.x, v.y);
          mma_bf16(c[group][1], p[2], q[2], p[3], q[3], v.z, v.w);
        } else {
          mma_f16(c[group][0], p[0], q[0], p[1], q[1], v.x, v.y);
          mma_f16(c[group][1], p[2], q[2], p[3], q[3], v.z, v.w);
        }
      }
    }
  }
  MEGA_UNROLL
  for (int group = 0; group < groups; ++group) {
    MEGA_UNROLL
    for (int e = 0; e < 4; ++e) c[group][0][e] += c[group][1][e];
    sums[group].put(warp, c[group][0]);
  }
  block_sync();
  for (int o = threadIdx.x; o < 16 * rows; o += blockDim.x) {
    int m = o / 16, r = o % 16, row = blockIdx.x * 16 + r;
    float scale = global_scale * output_shift * (format == 1 ? row_scale[row] : 1.0f);
    y[m * n + row] = sums[m / 8].sum(m % 8, r) * scale;
  }
}

}  // namespace mega
