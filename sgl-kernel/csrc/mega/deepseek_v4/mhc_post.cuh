// SPDX-License-Identifier: Apache-2.0
// The seam between two sublayers of a model with hyper-connections: rebuilds the four residual streams from the
// sublayer's output, collapses them to the next sublayer's input (normed by mhc_finish), and takes the next
// mix's projection of the new streams while they are at hand.
//
// A block owns SLICE columns of all four streams. Its share of the projection, 24 rows of 4 SLICE fp32 weights,
// is requested before the wait and split in three bf16 parts that hold every bit of it; the streams are bf16, so
// the tensor core's products are exact.
//
// Constants: HIDDEN, SLICE (columns, a multiple of 8 that divides HIDDEN), ROWS (the most a launch has, a
// multiple of 8).
// Numerics: a stream is fma(post, x, comb0 * r0), then fma(comb_i, r_i, .) for i = 1, 2, 3, rounded to bf16; the
// collapse is the four products in stream order, rounded to bf16: the stock kernels' bits. Projection and sums
// of squares in fp32, summed over the slices in order by mhc_finish.
#include "common/barrier.cuh"
#include "common/math.cuh"
#include "common/mma.cuh"
#include "common/pdl.cuh"
#include "common/row_norm.cuh"

namespace mega {

constexpr int hidden = MEGA_HIDDEN, slice = MEGA_SLICE, rows_max = MEGA_ROWS, streams = 4;
constexpr int mixes = 24, sums_stride = 28;                 // mixes, then the two sums of squares
constexpr int warps = slice / 8, threads = 32 * warps;      // a warp projects 32 of the 4 SLICE columns
constexpr int vectors = slice / 8, tasks = rows_max * vectors;
constexpr int stride = streams * slice + (144 - 4 * slice % 64) % 64;  // bf16; rows 32 bytes apart in banks
static_assert(hidden % slice == 0 && slice % 8 == 0 && rows_max % 8 == 0, "whole slices, vectors and tiles");

struct Weight {  // four fp32 in three parts, as two words each: k 0, 1 and k 2, 3
  u32 part[3][2];
};

MEGA_DEVICE Weight split(uint4 words) {
  float rest[4] = {bits_float(words.x), bits_float(words.y), bits_float(words.z), bits_float(words.w)};
  Weight out;
  MEGA_UNROLL
  for (int p = 0; p < 3; ++p) {
    MEGA_UNROLL
    for (int i = 0; i < 2; ++i) {
      out.part[p][i] = pack(rest[2 * i], rest[2 * i + 1]);
      float2 taken = unpack(out.part[p][i]);
      rest[2 * i] -= taken.x, rest[2 * i + 1] -= taken.y;
    }
  }
  return out;
}

struct Squares {
  float streams, collapsed;
};

// x: [rows, HIDDEN] bf16, the sublayer's output; residual, updated: [rows, 4, HIDDEN] bf16; pre, post: [rows, 4]
// and comb: [rows, 4 (from), 4 (to)] fp32; fn: [24, 4 HIDDEN] fp32, of the next mix; collapsed: [rows, HIDDEN]
// bf16; sums: [rows, HIDDEN / SLICE, 28] fp32. Grid: (HIDDEN / SLICE, row tiles of ROWS).
MEGA_KERNEL(mhc_post, threads, 1)
(const bf16* x, const bf16* residual, const float* pre, const float* post, const float* comb, const float* fn,
 bf16* updated, bf16* collapsed, float* sums, int rows) {
  MEGA_SHARED(Squares[tasks], squares);
  MEGA_DYNAMIC_SHARED(dynamic);
  using Partial = float[warps][rows_max][mixes];
  bf16* staged = reinterpret_cast<bf16*>(dynamic);  // [ROWS][stride]: the block's part of the new streams
  Partial& partial = *reinterpret_cast<Partial*>(dynamic + 2 * rows_max * stride);
  int warp = threadIdx.x / 32, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  int first_column = blockIdx.x * slice, first_row = blockIdx.y * rows_max;
  int count = rows - first_row < rows_max ? rows - first_row : rows_max;

  pdl_launch();
  uint4 raw[2][3];
  MEGA_UNROLL
  for (int step = 0; step < 2; ++step) {
    int quad = 8 * warp + 4 * step + t, stream = quad / (slice / 4), column = quad % (slice / 4) * 4;
    const float* place = fn + stream * hidden + first_column + column;
    MEGA_UNROLL
    for (int j = 0; j < 3; ++j) raw[step][j] = load_stream(place + static_cast<i64>(g + 8 * j) * 4 * hidden);
  }
  pdl_wait();

  for (int task = threadIdx.x; task < count * vectors; task += threads) {
    int row = task / vectors, column = task % vectors * 8;
    i64 line = first_row + row;
    Columns in = Columns::of(load_shared_by_step(x + line * hidden + first_column + column));
    Columns old[streams];
    float to[streams], from[streams][streams], weight[streams];
    MEGA_UNROLL
    for (int i = 0; i < streams; ++i) {
      old[i] = Columns::of(load_shared_by_step(residual + (line * 4 + i) * hidden + first_column + column));
      uint4 c = load_shared_by_step(comb + line * 16 + 4 * i);
      from[i][0] = bits_float(c.x), from[i][1] = bits_float(c.y);
      from[i][2] = bits_float(c.z), from[i][3] = bits_float(c.w);
    }
    uint4 p = load_shared_by_step(post + line * 4), q = load_shared_by_step(pre + line * 4);
    to[0] = bits_float(p.x), to[1] = bits_float(p.y), to[2] = bits_float(p.z), to[3] = bits_float(p.w);
    weight[0] = bits_float(q.x), weight[1] = bits_float(q.y);
    weight[2] = bits_float(q.z), weight[3] = bits_float(q.w);
    Columns one = {};
    Squares square = {0.0f, 0.0f};
    MEGA_UNROLL
    for (int stream = 0; stream < streams; ++stream) {
      Columns made;
      MEGA_UNROLL
      for (int i = 0; i < 8; ++i) {
        float sum = fmaf(to[stream], in.value[i], from[0][stream] * old[0].value[i]);
        MEGA_UNROLL
        for (int j = 1; j < streams; ++j) sum = fmaf(from[j][stream], old[j].value[i], sum);
        made.value[i] = sum;
      }
      uint4 words = made.packed();
      store_vector(updated + (line * 4 + stream) * hidden + first_column + column, words);
      *reinterpret_cast<uint4*>(staged + row * stride + stream * slice + column) = words;
      made = Columns::of(words);
      MEGA_UNROLL
      for (int i = 0; i < 8; ++i) {
        square.streams += made.value[i] * made.value[i];
        one.value[i] = fmaf(weight[stream], made.value[i], one.value[i]);
      }
    }
    uint4 words = one.packed();
    store_vector(collapsed + line * hidden + first_column + column, words);
    one = Columns::of(words);
    MEGA_UNROLL
    for (int i = 0; i < 8; ++i) square.collapsed += one.value[i] * one.value[i];
    squares[task] = square;
  }
  Weight weight[2][3];
  MEGA_UNROLL
  for (int step = 0; step < 2; ++step) MEGA_UNROLL
  for (int j = 0; j < 3; ++j) weight[step][j] = split(raw[step][j]);
  block_sync();

  // Mixes g, g + 8 and 16 + g of rows 8 tile .. 8 tile + 7.
  for (int tile = 0; 8 * tile < count; ++tile) {
    float low[3][4] = {}, high[3][4] = {};
    MEGA_UNROLL
    for (int step = 0; step < 2; ++step) {
      uint2 b = *reinterpret_cast<const uint2*>(staged + (8 * tile + g) * stride + 32 * warp + 16 * step + 4 * t);
      MEGA_UNROLL
      for (int p = 0; p < 3; ++p) {
        const u32(&w0)[2] = weight[step][0].part[p];
        const u32(&w1)[2] = weight[step][1].part[p];
        const u32(&w2)[2] = weight[step][2].part[p];
        mma_bf16(low[p], w0[0], w1[0], w0[1], w1[1], b.x, b.y);
        mma_bf16(high[p], w2[0], 0, w2[1], 0, b.x, b.y);
      }
    }
    MEGA_UNROLL
    for (int j = 0; j < 2; ++j) {
      float(&place)[mixes] = partial[warp][8 * tile + 2 * t + j];
      place[g] = low[2][j] + low[1][j] + low[0][j];
      place[g + 8] = low[2][2 + j] + low[1][2 + j] + low[0][2 + j];
      place[g + 16] = high[2][j] + high[1][j] + high[0][j];
    }
  }
  block_sync();

  for (int place = threadIdx.x; place < count * sums_stride; place += threads) {
    int row = place / sums_stride, item = place % sums_stride;
    float total = 0.0f;
    if (item < mixes) {
      MEGA_UNROLL
      for (int w = 0; w < warps; ++w) total += partial[w][row][item];
    } else if (item < mixes + 2) {
      MEGA_UNROLL
      for (int v = 0; v < vectors; ++v) {
        const Squares& square = squares[row * vectors + v];
        total += item == mixes ? square.streams : square.collapsed;
      }
    }
    sums[(static_cast<i64>(first_row + row) * gridDim.x + blockIdx.x) * sums_stride + item] = total;
  }
}

}  // namespace mega
