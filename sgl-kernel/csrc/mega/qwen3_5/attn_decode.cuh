// SPDX-License-Identifier: Apache-2.0
// Full attention, one token a row over a paged cache: q and k norm, rotary embedding, the new key and value
// into the cache, and the partial attention of one split of the context. attn_merge joins the splits.
//
// A block serves one row, one key-value head and the GROUP query heads that share it. Scores come from the
// tensor core with 16 tokens as the rows of a weight tile; the weighted values are summed by lanes that hold
// 8 of 256 channels. The new token never goes through the cache: split 0 starts its running softmax from it.
//
// Constants: ROWS, HEADS, KV_HEADS, ROTARY (channels, a multiple of 16), SPLITS, MIN_CHUNK (tokens, a multiple of 16),
// MROPE, EPSILON. Heads are 256 wide.
// Numerics: norm in fp32, rounded to bf16, rotated in fp32, rounded; scores, softmax and sums in fp32 with
// bf16 keys and values; probabilities stay fp32 (the stock kernels round them to bf16 for the second
// product).
#include "common/barrier.cuh"
#include "common/gemv.cuh"
#include "common/math.cuh"
#include "common/pdl.cuh"
#include "common/reduce.cuh"

namespace mega {

constexpr int rows = MEGA_ROWS, heads = MEGA_HEADS, kv_heads = MEGA_KV_HEADS, group = heads / kv_heads,
              dim = 256;
constexpr int rotary = MEGA_ROTARY, splits = MEGA_SPLITS, min_chunk = MEGA_MIN_CHUNK;
constexpr int warps = 8, tile = 16 * warps;  // tokens a round
constexpr int qkv_stride = (2 * heads + 2 * kv_heads) * dim;
constexpr float scale_log2 = 0.0625f * 1.4426950408889634f;  // 256^-0.5, and exp becomes exp2
constexpr float nothing = -1e30f;
static_assert(group <= 8 && heads % kv_heads == 0, "a group's heads are the columns of one product");
static_assert(rotary % 16 == 0 && rotary <= dim && min_chunk % 16 == 0, "lanes hold 8 channels");

struct Lane8 {
  float v[8];
};

MEGA_DEVICE Lane8 expand(uint4 words) {
  Lane8 out;
  u32 word[4] = {words.x, words.y, words.z, words.w};
  MEGA_UNROLL
  for (int i = 0; i < 4; ++i) {
    float2 pair = unpack(word[i]);
    out.v[2 * i] = pair.x, out.v[2 * i + 1] = pair.y;
  }
  return out;
}

MEGA_DEVICE uint4 contract(const Lane8& in) {
  return make_uint4(pack(in.v[0], in.v[1]), pack(in.v[2], in.v[3]), pack(in.v[4], in.v[5]),
                    pack(in.v[6], in.v[7]));
}

// Norm and rotation of one head; lane l holds channels 8l .. 8l + 7. Channel i < ROTARY / 2 pairs with i +
// ROTARY / 2, that is with lane l + ROTARY / 16.
MEGA_DEVICE uint4 norm_and_rotate(uint4 words, uint4 norm_weight, const float* cos_sin,
                                  const int* position_of_lane) {
  int lane = threadIdx.x & 31;
  constexpr int half_lanes = rotary / 16;
  Lane8 x = expand(words), w = expand(norm_weight);
  float square = 0.0f;
  MEGA_UNROLL
  for (int i = 0; i < 8; ++i) square += x.v[i] * x.v[i];
  float inverse = rsqrt_fast(warp_sum(square) * (1.0f / dim) + MEGA_EPSILON);
  MEGA_UNROLL
  for (int i = 0; i < 8; ++i) x.v[i] = round_bf16(x.v[i] * inverse * (1.0f + w.v[i]));
  bool first = lane < half_lanes, rotates = lane < 2 * half_lanes;
  int partner = first ? lane + half_lanes : rotates ? lane - half_lanes : lane;
  MEGA_UNROLL
  for (int i = 0; i < 8; ++i) {
    float other = shuffle(x.v[i], partner);
    if (rotates) {
      int channel = 8 * (first ? lane : partner) + i;
      const float* table = cos_sin + static_cast<i64>(position_of_lane[i]) * rotary + channel;
      float cosine = table[0], sine = table[rotary / 2];
      x.v[i] = first ? x.v[i] * cosine - other * sine : x.v[i] * cosine + other * sine;
    }
  }
  return contract(x);
}

struct Scratch {
  bf16 q[8][dim + 32];   // rows GROUP .. 7 are zero
  float k[dim], v[dim];  // the new token's, as the cache holds them
  float score[tile][8];  // scores, then weights
  float peak[8], total[8], rescale[8];
};

// qkv: [rows, 2 HEADS + 2 KV_HEADS, 256] (a head's q then its gate; k; v); q_norm, k_norm: [256];
// cos_sin: [positions, ROTARY] fp32 (cosines, then sines); positions: [rows] int64, or with MROPE [3, rows]
// with `position_stride` between axes and axis_map [ROTARY / 2] int64; seq_lens: [rows] int32 (with the new
// token); req_to_token: int32, a request every `request_stride`; req_index, cache_slot: [rows] int64;
// state_index: [rows] int32; k_cache, v_cache: [slots, KV_HEADS, 256] bf16, a slot every `cache_stride`
// elements; partial: [rows, HEADS, SPLITS, 256] fp32; stats: [rows, HEADS, SPLITS, 2] fp32 (peak in log2
// units, total). Grid: (SPLITS, KV_HEADS, rows).
MEGA_KERNEL(attn_decode, 32 * warps, 1)
(const bf16* qkv, const bf16* q_norm, const bf16* k_norm, const float* cos_sin, const i64* positions,
 i64 position_stride, const i64* axis_map, const int* seq_lens, const int* req_to_token, i64 request_stride,
 const i64* req_index, const i64* cache_slot, const int* state_index, bf16* k_cache, bf16* v_cache,
 i64 cache_stride, float* partial, float* stats) {
  MEGA_SHARED(Scratch, s);
  using Exchange = float[warps / 2][group][dim];
  MEGA_DYNAMIC_SHARED(dynamic);
  Exchange& exchange = *reinterpret_cast<Exchange*>(dynamic);
  int warp = threadIdx.x / 32, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  int split = blockIdx.x, kv = blockIdx.y, row = blockIdx.z;

  pdl_launch();
  bool live = state_index[row] >= 0;
  int context = live ? seq_lens[row] - 1 : 0;
  int chunk = ((context + splits - 1) / splits + 15) / 16 * 16;
  chunk = chunk > min_chunk ? chunk : min_chunk;
  int begin = split * chunk < context ? split * chunk : context;
  int end = begin + chunk < context ? begin + chunk : context;
  const int* tokens = req_to_token + (live ? req_index[row] : 0) * request_stride;
  auto cached = [&](const bf16* cache, int token) {
    return cache + (static_cast<i64>(tokens[token < end ? token : end - 1]) * cache_stride + kv * dim);
  };
  WeightStream<dim, dim / 32> keys;
  if (begin < end) {
    int first = begin + 16 * warp + g;
    keys.begin(cached(k_cache, first), cached(k_cache, first + 8));
    int mine = begin + 16 * warp + lane;  // the values are read after the scores: to L2 meanwhile
    if (lane < 16 && mine < end) prefetch_l2(cached(v_cache, mine), 2 * dim);
  }
  uint4 q_weight = load_stream(q_norm + 8 * lane), k_weight = load_stream(k_norm + 8 * lane);
  int position[8];  // of the lane's channels
  MEGA_UNROLL
  for (int i = 0; i < 8; ++i) {
    int channel = (8 * lane + i) % (rotary / 2);
    position[i] =
        static_cast<int>(MEGA_MROPE ? positions[axis_map[channel] * position_stride + row] : positions[row]);
  }

  pdl_wait();
  const bf16* input = qkv + row * qkv_stride;
  const bf16* new_k = input + (2 * heads + kv) * dim;
  const bf16* new_v = input + (2 * heads + kv_heads + kv) * dim;
  if (warp < group) {
    uint4 q = load_shared_by_step(input + 2 * (kv * group + warp) * dim + 8 * lane);
    *reinterpret_cast<uint4*>(&s.q[warp][8 * lane]) = norm_and_rotate(q, q_weight, cos_sin, position);
  } else {
    *reinterpret_cast<uint4*>(&s.q[warp][8 * lane]) = make_uint4(0, 0, 0, 0);
  }
  if (split == 0 && warp == warps - 1) {
    uint4 k = norm_and_rotate(load_shared_by_step(new_k + 8 * lane), k_weight, cos_sin, position);
    uint4 v = load_shared_by_step(new_v + 8 * lane);
    Lane8 k8 = expand(k), v8 = expand(v);
    MEGA_UNROLL
    for (int i = 0; i < 8; ++i) s.k[8 * lane + i] = k8.v[i], s.v[8 * lane + i] = v8.v[i];
    if (live) {
      i64 place = cache_slot[row] * cache_stride + kv * dim + 8 * lane;
      store_vector(k_cache + place, k);
      store_vector(v_cache + place, v);
    }
  }
  block_sync();

  // The running softmax: from the new token in split 0, empty elsewhere.
  Lane8 sum[group];
  MEGA_UNROLL
  for (int h = 0; h < group; ++h) MEGA_UNROLL
  for (int i = 0; i < 8; ++i) sum[h].v[i] = split == 0 && warp == 0 ? s.v[8 * lane + i] : 0.0f;
  if (warp < group) {
    float dot = 0.0f;
    if (split == 0) {
      Lane8 q = expand(*reinterpret_cast<const uint4*>(&s.q[warp][8 * lane]));
      MEGA_UNROLL
      for (int i = 0; i < 8; ++i) dot += q.v[i] * s.k[8 * lane + i];
      dot = warp_sum(dot);
    }
    if (lane == 0)
      s.peak[warp] = split == 0 ? dot * scale_log2 : nothing, s.total[warp] = split == 0 ? 1.0f : 0.0f;
  }

  for (int base = begin; base < end; base += tile) {
    int mine = base + 16 * warp;  // the warp's 16 tokens
    if (base > begin && mine < end) keys.begin(cached(k_cache, mine + g), cached(k_cache, mine + g + 8));
    float c[4] = {};
    if (mine < end) {
      keys.multiply(c, [&](int step) { return *reinterpret_cast<const uint4*>(&s.q[g][32 * step + 8 * t]); });
    }
    MEGA_UNROLL
    for (int j = 0; j < 4; ++j) {
      int token = 16 * warp + g + 8 * (j / 2);
      s.score[token][2 * t + j % 2] = base + token < end ? c[j] * scale_log2 : nothing;
    }
    block_sync();
    if (warp < group) {
      float score[tile / 32], peak = s.peak[warp];
      MEGA_UNROLL
      for (int i = 0; i < tile / 32; ++i) score[i] = s.score[32 * i + lane][warp];
      float best = score[0];
      MEGA_UNROLL
      for (int i = 1; i < tile / 32; ++i) best = fmaxf(best, score[i]);
      best = fmaxf(warp_max_float(best), peak);
      float added = 0.0f;
      MEGA_UNROLL
      for (int i = 0; i < tile / 32; ++i) {
        float weight = base + 32 * i + lane < end ? exp2_fast(score[i] - best) : 0.0f;
        s.score[32 * i + lane][warp] = weight;
        added += weight;
      }
      added = warp_sum(added);
      if (lane == 0) {
        float rescale = exp2_fast(peak - best);
        s.rescale[warp] = rescale;
        s.total[warp] = s.total[warp] * rescale + added;
        s.peak[warp] = best;
      }
    }
    block_sync();
    MEGA_UNROLL
    for (int h = 0; h < group; ++h) {
      float rescale = s.rescale[h];
      MEGA_UNROLL
      for (int i = 0; i < 8; ++i) sum[h].v[i] *= rescale;
    }
    MEGA_UNROLL
    for (int half = 0; half < 16; half += 8) {
      uint4 value[8];
      MEGA_UNROLL
      for (int i = 0; i < 8; ++i)
        if (mine + half < end) value[i] = load_stream(cached(v_cache, mine + half + i) + 8 * lane);
      warp_sync();
      MEGA_UNROLL
      for (int i = 0; i < 8; ++i) {
        if (mine + half + i >= end) continue;
        Lane8 v = expand(value[i]);
        MEGA_UNROLL
        for (int h = 0; h < group; ++h) {
          float weight = s.score[16 * warp + half + i][h];
          MEGA_UNROLL
          for (int j = 0; j < 8; ++j) sum[h].v[j] += weight * v.v[j];
        }
      }
    }
    block_sync();
  }

  // The warps' sums, pairwise in a fixed order.
  MEGA_UNROLL
  for (int half = warps / 2; half; half /= 2) {
    if (warp >= half && warp < 2 * half) {
      MEGA_UNROLL
      for (int h = 0; h < group; ++h) MEGA_UNROLL
      for (int i = 0; i < 8; ++i) exchange[warp - half][h][8 * lane + i] = sum[h].v[i];
    }
    block_sync();
    if (warp < half) {
      MEGA_UNROLL
      for (int h = 0; h < group; ++h) MEGA_UNROLL
      for (int i = 0; i < 8; ++i) sum[h].v[i] += exchange[warp][h][8 * lane + i];
    }
    block_sync();
  }
  if (warp > 0) return;
  MEGA_UNROLL
  for (int h = 0; h < group; ++h) {
    i64 place = (static_cast<i64>(row) * heads + kv * group + h) * splits + split;
    if (begin < end || split == 0) {
      MEGA_UNROLL
      for (int i = 0; i < 8; i += 4) {
        const float* v = sum[h].v + i;
        store_vector(partial + place * dim + 8 * lane + i,
                     make_uint4(float_bits(v[0]), float_bits(v[1]), float_bits(v[2]), float_bits(v[3])));
      }
    }
    if (lane == 0) stats[2 * place] = s.peak[h], stats[2 * place + 1] = s.total[h];
  }
}

}  // namespace mega
