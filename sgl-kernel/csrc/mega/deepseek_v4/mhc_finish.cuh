// SPDX-License-Identifier: Apache-2.0
// Ends what mhc_post began: the next sublayer's normed input and the next mix's coefficients (pre, post, comb).
// A block serves one row.
//
// Constants: HIDDEN, SLICE (as mhc_post), ITERATIONS (of Sinkhorn's normalisation), RMS_EPSILON and EPSILON (of
// the mix), NORM_EPSILON.
// Numerics: all fp32; slices summed in a fixed order that rows do not change; quotients as products with a
// reciprocal; the normed input rounded to bf16 once.
#include "common/barrier.cuh"
#include "common/math.cuh"
#include "common/pdl.cuh"
#include "common/row_norm.cuh"

namespace mega {

constexpr int hidden = MEGA_HIDDEN, slices = hidden / MEGA_SLICE, streams = 4, mixes = 24;
constexpr int threads = 256, quads = 7, runs = threads / quads, vectors = hidden / 8;
constexpr int held = (vectors + threads - 1) / threads;  // vectors a thread norms

// Rows, then columns, `iterations` times; every sum gets epsilon. One thread holds the matrix.
MEGA_DEVICE void normalise(float (&m)[4][4], int iterations, float epsilon) {
  for (int turn = 0; turn < iterations; ++turn) {
    if (turn) {
      MEGA_UNROLL
      for (int i = 0; i < 4; ++i) {
        float inverse = divide(1.0f, (m[i][0] + m[i][1]) + (m[i][2] + m[i][3]) + epsilon);
        MEGA_UNROLL
        for (int j = 0; j < 4; ++j) m[i][j] *= inverse;
      }
    }
    MEGA_UNROLL
    for (int j = 0; j < 4; ++j) {
      float inverse = divide(1.0f, (m[0][j] + m[1][j]) + (m[2][j] + m[3][j]) + epsilon);
      MEGA_UNROLL
      for (int i = 0; i < 4; ++i) m[i][j] *= inverse;
    }
  }
}

// sums: [rows, slices, 28] fp32; collapsed: [rows, HIDDEN] bf16; norm_weight: [HIDDEN] bf16; mix_scale: [3] and
// base: [24] fp32; normed: [rows, HIDDEN] bf16; pre, post: [rows, 4]; comb: [rows, 4, 4] fp32. Grid: (rows).
MEGA_KERNEL(mhc_finish, threads, 1)
(const float* sums, const bf16* collapsed, const bf16* norm_weight, const float* mix_scale, const float* base,
 bf16* normed, float* pre, float* post, float* comb) {
  MEGA_SHARED(float[runs][4 * quads], run_sums);
  MEGA_SHARED(float[4 * quads], total);
  i64 row = blockIdx.x;
  int run = threadIdx.x / quads, quad = threadIdx.x % quads;

  pdl_launch();
  uint4 gain[held];
  MEGA_UNROLL
  for (int i = 0; i < held; ++i) {
    int vector = threadIdx.x + i * threads;
    gain[i] = vector < vectors ? load_stream(norm_weight + 8 * vector) : make_uint4(0, 0, 0, 0);
  }
  float offset = threadIdx.x < mixes ? base[threadIdx.x] : 0.0f;
  float scale = threadIdx.x < mixes ? mix_scale[threadIdx.x < 4 ? 0 : threadIdx.x < 8 ? 1 : 2] : 0.0f;
  pdl_wait();

  uint4 value[held];
  MEGA_UNROLL
  for (int i = 0; i < held; ++i) {
    int vector = threadIdx.x + i * threads;
    value[i] = vector < vectors ? load_shared_by_step(collapsed + row * hidden + 8 * vector)
                                : make_uint4(0, 0, 0, 0);
  }
  if (run < runs) {
    float sum[4] = {};
    MEGA_UNROLL
    for (int i = 0; i < (slices + runs - 1) / runs; ++i) {
      int part = run + i * runs;
      if (part < slices) {
        uint4 w = load_shared_by_step(sums + (row * slices + part) * 4 * quads + 4 * quad);
        sum[0] += bits_float(w.x), sum[1] += bits_float(w.y);
        sum[2] += bits_float(w.z), sum[3] += bits_float(w.w);
      }
    }
    MEGA_UNROLL
    for (int i = 0; i < 4; ++i) run_sums[run][4 * quad + i] = sum[i];
  }
  block_sync();
  if (threadIdx.x < 4 * quads) {
    float sum = 0.0f;
    MEGA_UNROLL
    for (int i = 0; i < runs; ++i) sum += run_sums[i][threadIdx.x];
    total[threadIdx.x] = sum;
  }
  block_sync();

  // The mix: its 24 numbers by a warp, the matrix by one thread. Other warps go on to the norm.
  if (threadIdx.x < 32) {
    float inverse = divide(1.0f, sqrt_exact(total[mixes] * (1.0f / (streams * hidden)) + MEGA_RMS_EPSILON));
    float mix = 0.0f;
    if (threadIdx.x < mixes) {
      mix = total[threadIdx.x] * inverse * scale + offset;
      if (threadIdx.x < 4) pre[row * 4 + threadIdx.x] = sigmoid(mix) + MEGA_EPSILON;
      if (threadIdx.x >= 4 && threadIdx.x < 8) post[row * 4 + threadIdx.x - 4] = 2.0f * sigmoid(mix);
    }
    float m[4][4];
    MEGA_UNROLL
    for (int i = 0; i < 4; ++i) MEGA_UNROLL
    for (int j = 0; j < 4; ++j) m[i][j] = shuffle(mix, 8 + 4 * i + j);
    if (threadIdx.x == 31) {
      MEGA_UNROLL
      for (int i = 0; i < 4; ++i) {
        float best = fmaxf(fmaxf(m[i][0], m[i][1]), fmaxf(m[i][2], m[i][3]));
        MEGA_UNROLL
        for (int j = 0; j < 4; ++j) m[i][j] = exp_fast(m[i][j] - best);
        float share = divide(1.0f, (m[i][0] + m[i][1]) + (m[i][2] + m[i][3]));
        MEGA_UNROLL
        for (int j = 0; j < 4; ++j) m[i][j] = m[i][j] * share + MEGA_EPSILON;
      }
      normalise(m, MEGA_ITERATIONS, MEGA_EPSILON);
      MEGA_UNROLL
      for (int i = 0; i < 4; ++i) {
        store_vector(comb + row * 16 + 4 * i, make_uint4(float_bits(m[i][0]), float_bits(m[i][1]),
                                                         float_bits(m[i][2]), float_bits(m[i][3])));
      }
    }
  }
  float inverse = rsqrt_fast(total[mixes + 1] * (1.0f / hidden) + MEGA_NORM_EPSILON);
  MEGA_UNROLL
  for (int i = 0; i < held; ++i) {
    int vector = threadIdx.x + i * threads;
    Columns v = Columns::of(value[i]), w = Columns::of(gain[i]);
    MEGA_UNROLL
    for (int j = 0; j < 8; ++j) v.value[j] = v.value[j] * inverse * w.value[j];
    if (vector < vectors) store_vector(normed + row * hidden + 8 * vector, v.packed());
  }
}

}  // namespace mega
