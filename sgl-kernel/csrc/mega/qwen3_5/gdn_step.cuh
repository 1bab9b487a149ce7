// SPDX-License-Identifier: Apache-2.0
// Gated delta net, one token: gates, L2 norms of q and k, and the recurrence on the state of each value head.
// A block owns VALUES value channels of one head of one row; the state is read before the dependency wait.
//
// Constants: QKV, HEADS_K, HEADS_V, VALUES (16, 32, 64 or 128), STATE_BF16 (else the state is fp32). Heads are 128 wide.
// Numerics: everything in fp32 except beta, which is rounded to bf16 as the stock packed decode does; with h
// the decayed state, o = h'q is formed as h q + (k q) dv, so that both sums over k are taken at once.
#include "common/math.cuh"
#include "common/memory.cuh"
#include "common/pdl.cuh"
#include "common/reduce.cuh"

namespace mega {

constexpr int qkv = MEGA_QKV, heads_k = MEGA_HEADS_K, heads_v = MEGA_HEADS_V, dim = 128;
constexpr int warps = 4, values = MEGA_VALUES, steps = values / (4 * warps);  // 8 lanes a value channel
constexpr int group = heads_v / heads_k;
constexpr bool state_bf16 = MEGA_STATE_BF16;
using State = Select<state_bf16, bf16, float>;

// The lane's 16 of 128 columns: 4 at each of 0, 32, 64, 96, plus 4 times its place among its eight lanes.
struct Columns {
  float v[16];
};

MEGA_DEVICE Columns unpack_bf16(const bf16* row, int part) {
  Columns out;
  MEGA_UNROLL
  for (int i = 0; i < 4; ++i) {
    uint2 word = load_step_pair(row + 32 * i + 4 * part);
    float2 a = unpack(word.x), b = unpack(word.y);
    out.v[4 * i] = a.x, out.v[4 * i + 1] = a.y, out.v[4 * i + 2] = b.x, out.v[4 * i + 3] = b.y;
  }
  return out;
}

MEGA_DEVICE void normalise(Columns& c, float scale) {
  float square = 0.0f;
  MEGA_UNROLL
  for (int i = 0; i < 16; ++i) square += c.v[i] * c.v[i];
  float factor = scale / sqrt_exact(warp_sum<8>(square) + 1e-6f);
  MEGA_UNROLL
  for (int i = 0; i < 16; ++i) c.v[i] *= factor;
}

struct StateRow {  // the lane's columns as they lie in memory
  uint4 word[state_bf16 ? 2 : 4];
};

MEGA_DEVICE StateRow load_state(const State* row, int part) {
  StateRow out;
  if constexpr (state_bf16) {
    MEGA_UNROLL
    for (int i = 0; i < 2; ++i) {
      uint2 a = load_stream_pair(row + 64 * i + 4 * part), b = load_stream_pair(row + 64 * i + 32 + 4 * part);
      out.word[i] = make_uint4(a.x, a.y, b.x, b.y);
    }
  } else {
    MEGA_UNROLL
    for (int i = 0; i < 4; ++i) out.word[i] = load_stream(row + 32 * i + 4 * part);
  }
  return out;
}

MEGA_DEVICE Columns state_columns(const StateRow& s) {
  Columns out;
  if constexpr (state_bf16) {
    MEGA_UNROLL
    for (int i = 0; i < 8; ++i) {
      u32 word = i % 4 == 0   ? s.word[i / 4].x
                 : i % 4 == 1 ? s.word[i / 4].y
                 : i % 4 == 2 ? s.word[i / 4].z
                              : s.word[i / 4].w;
      float2 a = unpack(word);
      out.v[2 * i] = a.x, out.v[2 * i + 1] = a.y;
    }
  } else {
    MEGA_UNROLL
    for (int i = 0; i < 4; ++i) {
      out.v[4 * i] = bits_float(s.word[i].x), out.v[4 * i + 1] = bits_float(s.word[i].y);
      out.v[4 * i + 2] = bits_float(s.word[i].z), out.v[4 * i + 3] = bits_float(s.word[i].w);
    }
  }
  return out;
}

MEGA_DEVICE void store_state(State* row, int part, const Columns& c) {
  MEGA_UNROLL
  for (int i = 0; i < 4; ++i) {
    const float* v = c.v + 4 * i;
    if constexpr (state_bf16) {
      store_pair(row + 32 * i + 4 * part, make_uint2(pack(v[0], v[1]), pack(v[2], v[3])));
    } else {
      store_vector(row + 32 * i + 4 * part,
                   make_uint4(float_bits(v[0]), float_bits(v[1]), float_bits(v[2]), float_bits(v[3])));
    }
  }
}

// Grid: (HEADS_V * 128 / VALUES, rows). mixed_qkv: [rows, QKV]; ba: [rows, 2 HEADS_V]; a_log, dt_bias:
// [HEADS_V] fp32; state: [slots, HEADS_V, 128 values, 128 keys], a slot every `slot_stride` elements, updated
// in place; out: [rows, HEADS_V, 128] bf16, zero for padding.
MEGA_KERNEL(gdn_step, 32 * warps, 4)
(const bf16* mixed_qkv, const bf16* ba, const float* a_log, const float* dt_bias, State* state,
 i64 slot_stride, const int* state_index, bf16* out) {
  int lane = threadIdx.x & 31, part = lane & 7, row = blockIdx.y;
  int head = blockIdx.x / (dim / values), first = blockIdx.x % (dim / values) * values;
  int value = first + (threadIdx.x / 32) * (values / warps) + (lane >> 3);  // then every 4th
  pdl_launch();
  int slot = state_index[row];
  State* base = state + slot * slot_stride + (static_cast<i64>(head) * dim + value) * dim;
  StateRow loaded[steps];
  if (slot >= 0) {
    MEGA_UNROLL
    for (int s = 0; s < steps; ++s) loaded[s] = load_state(base + 4 * s * dim, part);
  }
  float rate = -exp_fast(a_log[head]), bias = dt_bias[head];

  pdl_wait();
  bf16* result = out + (row * heads_v + head) * dim + value;
  if (slot < 0) {
    MEGA_UNROLL
    for (int s = 0; s < steps; ++s)
      if (part == 0) result[4 * s] = to_bf16(0.0f);
    return;
  }
  const bf16* inputs = mixed_qkv + row * qkv;
  Columns q = unpack_bf16(inputs + head / group * dim, part);
  Columns k = unpack_bf16(inputs + (heads_k + head / group) * dim, part);
  normalise(q, 0.08838834764831845f);  // 128^-0.5
  normalise(k, 1.0f);
  float beta = round_bf16(sigmoid(to_float(ba[row * 2 * heads_v + head])));
  float decay = exp_fast(rate * softplus(to_float(ba[row * 2 * heads_v + heads_v + head]) + bias));
  float kq = 0.0f;
  MEGA_UNROLL
  for (int i = 0; i < 16; ++i) kq += k.v[i] * q.v[i];
  kq = warp_sum<8>(kq);

  MEGA_UNROLL
  for (int s = 0; s < steps; ++s) {
    Columns h = state_columns(loaded[s]);
    float hk = 0.0f, hq = 0.0f;
    MEGA_UNROLL
    for (int i = 0; i < 16; ++i) {
      h.v[i] *= decay;
      hk += h.v[i] * k.v[i];
      hq += h.v[i] * q.v[i];
    }
    float v = to_float(inputs[2 * heads_k * dim + head * dim + value + 4 * s]);
    float delta = (v - warp_sum<8>(hk)) * beta;
    float o = warp_sum<8>(hq) + kq * delta;
    MEGA_UNROLL
    for (int i = 0; i < 16; ++i) h.v[i] += k.v[i] * delta;
    store_state(base + 4 * s * dim, part, h);
    if (part == 0) result[4 * s] = to_bf16(o);
  }
}

}  // namespace mega
