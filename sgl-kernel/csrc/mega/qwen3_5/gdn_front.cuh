// SPDX-License-Identifier: Apache-2.0
// Gated delta net, front: input RMSNorm, in_proj_qkvz and in_proj_ba, and the convolution of the q, k and v
// channels with its state update. A block owns 16 output channels of every row, so it alone touches their
// convolution state.
//
// Constants: ROWS (bucket, 1 to 8), HIDDEN, QKV (channels of q, k and v), Z, HEADS_V, DEPTH (weight steps in flight),
// BLOCKS (a multiprocessor), EPSILON.
// Numerics: projections in fp32, rounded to bf16; the convolution multiplies bf16 by bf16 with the product
// rounded to bf16 and accumulates in fp32, as the stock Triton update does; SiLU in fp32; one rounding.
#include "common/gemv.cuh"
#include "common/pdl.cuh"
#include "qwen3_5/norm_stage.cuh"

namespace mega {

constexpr int rows = MEGA_ROWS, hidden = MEGA_HIDDEN, qkv = MEGA_QKV, z_channels = MEGA_Z,
              heads_v = MEGA_HEADS_V;
constexpr int warps = 8, run = hidden / warps, taps = 4;
constexpr int qkvz_tiles = (qkv + z_channels) / 16;
static_assert(qkv % 16 == 0 && z_channels % 16 == 0, "a tile holds channels of one kind");

struct Window {  // one channel's taps and its last three inputs, oldest first
  float weight[taps], input[taps - 1];
};

// x: [rows, HIDDEN]; square_sums: [rows, HIDDEN / 16]; norm_weight: [HIDDEN];
// w_qkvz: [QKV + Z, HIDDEN]; w_ba: [2 HEADS_V, HIDDEN]; conv_weight: [QKV, 4];
// conv_state: [slots, QKV, 3], a slot every `conv_slot_stride` elements, updated in place;
// state_index: [rows] int32, negative for a row that is padding;
// out: mixed_qkv [rows, QKV], z [rows, Z], ba [rows, 2 HEADS_V] (b, then a).
// Blackwell's assembler spills in the registers that three blocks leave.
MEGA_KERNEL(gdn_front, 32 * warps, MEGA_BLACKWELL && MEGA_BLOCKS > 2 ? 2 : MEGA_BLOCKS)
(const bf16* x, const float* square_sums, const bf16* norm_weight, const bf16* w_qkvz, const bf16* w_ba,
 const bf16* conv_weight, bf16* conv_state, i64 conv_slot_stride, const int* state_index, bf16* mixed_qkv,
 bf16* z, bf16* ba, int live_rows) {
  MEGA_DYNAMIC_SHARED(dynamic);
  MEGA_SHARED(float[rows], inverse);
  using Sums = TileSums<warps, rows>;
  MEGA_SHARED(Sums, sums);
  int warp = threadIdx.x / 32, g = (threadIdx.x & 31) >> 2, tile = blockIdx.x;
  StagedRows<rows, run> staged{reinterpret_cast<bf16*>(dynamic) + warp * StagedRows<rows, run>::elements};

  pdl_launch();
  const bf16* low = w_qkvz + (static_cast<i64>(16) * tile + g) * hidden;
  const bf16* high = low + 8 * hidden;
  if (tile >= qkvz_tiles) {  // the last tile may be part empty: its rows repeat the last one
    int first = 16 * (tile - qkvz_tiles) + g, last = 2 * heads_v - 1;
    low = w_ba + static_cast<i64>(first < last ? first : last) * hidden;
    high = w_ba + static_cast<i64>(first + 8 < last ? first + 8 : last) * hidden;
  }
  WeightStream<run, MEGA_DEPTH> stream;
  stream.begin(low + warp * run, high + warp * run);
  NormStage<rows, hidden, warps> norm;
  norm.prefetch(norm_weight);
  int m = threadIdx.x / 16, channel = 16 * tile + threadIdx.x % 16;
  bool owns = m < live_rows && threadIdx.x < 16 * rows, convolves = owns && channel < qkv;
  int slot = convolves ? state_index[m] : -1;
  bf16* state = conv_state + slot * conv_slot_stride + static_cast<i64>(channel) * (taps - 1);
  Window window = {};
  if (slot >= 0) {
    MEGA_UNROLL
    for (int i = 0; i < taps; ++i) window.weight[i] = to_float(conv_weight[channel * taps + i]);
    MEGA_UNROLL
    for (int i = 0; i < taps - 1; ++i) window.input[i] = to_float(state[i]);
  }

  pdl_wait();
  norm.run_stage(staged, x, square_sums, inverse, live_rows, MEGA_EPSILON);
  float c[4] = {};
  stream.multiply(c, [&](int step) { return staged.fragment(step); });
  sums.put(warp, c);
  block_sync();
  if (!owns) return;
  float y = round_bf16(sums.sum(m, threadIdx.x % 16));
  if (convolves) {
    float acc = 0.0f;
    MEGA_UNROLL
    for (int i = 0; i < taps - 1; ++i) acc += round_bf16(window.input[i] * window.weight[i]);
    acc += round_bf16(y * window.weight[taps - 1]);
    mixed_qkv[m * qkv + channel] = to_bf16(silu(acc));
    if (slot >= 0) {
      state[0] = to_bf16(window.input[1]);
      state[1] = to_bf16(window.input[2]);
      state[2] = to_bf16(y);
    }
  } else if (tile < qkvz_tiles) {
    z[m * z_channels + channel - qkv] = to_bf16(y);
  } else if (channel < qkv + z_channels + 2 * heads_v) {
    ba[m * 2 * heads_v + channel - qkv - z_channels] = to_bf16(y);
  }
}

}  // namespace mega
