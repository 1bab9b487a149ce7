// SPDX-License-Identifier: Apache-2.0
// Sparse multi-head latent attention of decode and verify rows: each row attends the cached tokens that its
// indexer chose, and the latent is both key and value. A block serves one row, up to eight heads and one split
// of the row's choice; mla_merge joins the splits.
//
// A rank holds few heads (8 of 64 at TP8). They are the columns of the tensor core's tile and tokens or
// channels its rows, so eight heads fill it and nothing is padded. Every warp works by itself on 16 tokens at a
// time, which it brings by bulk copies, and keeps all 512 channels of its sums; warps meet at the end. Queries
// are fp16 next to FP8 rows, each head scaled by its own power of two; weights carry the token's block scales.
//
// Constants: HEADS (1 to 16), TOP_K, FP8 (0 or 1), WARPS, STAGES (groups of 16 tokens in flight, a warp).
// Numerics: scores and softmax in fp32; e4m3 and bf16 values are exact in the products, scales are applied in
// fp32 to scores and, rounded with the weights to fp16 (to bf16 next to BF16 rows), to values; fp32 sums.
#include "common/barrier.cuh"
#include "common/math.cuh"
#include "common/pdl.cuh"
#include "common/reduce.cuh"
#include "glm_moe_dsa/kv_rows.cuh"

namespace mega {

constexpr int heads = MEGA_HEADS, top_k = MEGA_TOP_K, stages = MEGA_STAGES, warps = MEGA_WARPS;
constexpr int columns = 8, threads = 32 * warps;
constexpr int exchange_stride = latent + 4;
constexpr float nothing = -1e30f;
constexpr float weight_unit = 16384.0f;  // keeps small weights above fp16's subnormals
static_assert(heads >= 1 && heads <= 16 && top_k % 4 == 0 && warps <= 16, "one or two tiles of heads");
using Rows = Select<(MEGA_FP8 != 0), Fp8Rows, Bf16Rows>;
static_assert(stages * group * Rows::stride >= 4 * columns * exchange_stride, "a warp's sums fit in its stages");

struct Scratch {
  alignas(16) bf16 query[columns][Rows::query_stride];  // fp16 bits next to FP8 rows
  alignas(16) bf16 rotated[columns][rope + 32];
  MBarrier full[warps][stages];
  u32 there[warps][stages];  // which tokens of the group are there
  float query_unit[columns];
  float peak[warps][columns], total[warps][columns];
};

// A power of two between x and 2 x (x: not negative, 2^-100 to 2^100, else clamped), and its inverse.
MEGA_DEVICE float unit_of(float x) {
  u32 bits = (float_bits(fminf(fmaxf(x, 0x1p-100f), 0x1p100f)) + 0x7fffffu) & 0x7f800000u;
  return bits_float(bits);
}
MEGA_DEVICE float inverse_unit(float unit) { return bits_float((254u << 23) - float_bits(unit)); }

MEGA_DEVICE float largest(uint4 words) {
  float best = 0.0f;
  u32 word[4] = {words.x, words.y, words.z, words.w};
  MEGA_UNROLL
  for (int i = 0; i < 4; ++i) {
    float2 pair = unpack(word[i]);
    best = fmaxf(best, fmaxf(fabsf(pair.x), fabsf(pair.y)));
  }
  return best;
}

// One head's latent query into shared memory; lane l holds channels 8 l + 256 j.
MEGA_DEVICE void stage_query(Scratch& s, int head, const bf16* query) {
  int lane = threadIdx.x & 31;
  uint4 words[2];
  MEGA_UNROLL
  for (int j = 0; j < 2; ++j) {
    words[j] = query ? load_shared_by_step(query + 256 * j + 8 * lane) : make_uint4(0, 0, 0, 0);
  }
  if (Rows::scaled) {
    float unit = unit_of(warp_max_float(fmaxf(largest(words[0]), largest(words[1]))) * 0x1p-14f);
    float inverse = inverse_unit(unit);
    if (lane == 0) s.query_unit[head] = unit;
    MEGA_UNROLL
    for (int j = 0; j < 2; ++j) {
      u32 word[4] = {words[j].x, words[j].y, words[j].z, words[j].w};
      MEGA_UNROLL
      for (int i = 0; i < 4; ++i) {
        float2 pair = unpack(word[i]);
        word[i] = pack_half(pair.x * inverse, pair.y * inverse);
      }
      words[j] = make_uint4(word[0], word[1], word[2], word[3]);
    }
  } else if (lane == 0) {
    s.query_unit[head] = 1.0f;
  }
  MEGA_UNROLL
  for (int j = 0; j < 2; ++j)
    *reinterpret_cast<uint4*>(&s.query[head][256 * j + 8 * lane]) = words[j];
}

// query: [rows, HEADS, 512] bf16 and query_rotated: [rows, HEADS, 64] bf16, each with a stride of rows and of
// heads in elements; chosen: [rows, TOP_K] int32, cache rows, negative where nothing was chosen, with a stride
// of rows; cache: rows of 656 or 1152 bytes; scale: of the scores, times log2(e); partial: [rows, HEADS,
// splits, 512] fp32 and stats: [rows, HEADS, splits, 2] fp32 (peak in log2 units, total). Grid: (splits, rows,
// tiles of 8 heads).
MEGA_KERNEL(mla_decode, threads, 1)
(const bf16* query, i64 query_row, i64 query_head, const bf16* query_rotated, i64 rotated_row,
 i64 rotated_head, const int* chosen, i64 chosen_row, const u8* cache, float scale, float* partial,
 float* stats) {
  MEGA_SHARED(Scratch, s);
  MEGA_DYNAMIC_SHARED(dynamic);  // [WARPS][STAGES][16][Rows::stride], at the end the warps' sums
  int warp = threadIdx.x / 32, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  int split = blockIdx.x, splits = gridDim.x, row = blockIdx.y, first_head = columns * blockIdx.z;
  int live = heads - first_head < columns ? heads - first_head : columns;
  int chunk = ((top_k + splits - 1) / splits + group - 1) / group * group;
  int begin = split * chunk < top_k ? split * chunk : top_k;
  int end = begin + chunk < top_k ? begin + chunk : top_k;
  u8* staged = dynamic + warp * stages * group * Rows::stride;

  pdl_launch();
  if (lane == 0) {
    MEGA_UNROLL
    for (int i = 0; i < stages; ++i) mbarrier_init(s.full[warp][i], group);
  }
  warp_sync();
  pdl_wait();

  // Group `turn` of the warp is group warp + turn * WARPS of the block. Lane l < 16 brings one token; one that
  // is not there reads as zero.
  const int* mine = chosen + row * chosen_row + begin;
  auto first_of = [&](int turn) { return begin + group * (warp + turn * warps); };
  auto choice = [&](int turn) {
    int token = first_of(turn) - begin + lane;
    return lane < group && token < end - begin ? static_cast<int>(load_step_word(mine + token)) : -1;
  };
  auto bring = [&](int turn, int slot) {
    u8* place = staged + ((turn % stages) * group + lane) * Rows::stride;
    MBarrier& full = s.full[warp][turn % stages];
    u32 there = warp_ballot(slot >= 0);
    if (slot >= 0) {
      mbarrier_expect(full, Rows::bytes);
      bulk_copy(place, cache + static_cast<i64>(slot) * Rows::bytes, Rows::bytes, full);
    } else if (lane < group) {
      for (int i = 0; there && i < Rows::bytes; i += 16)
        *reinterpret_cast<uint4*>(place + i) = make_uint4(0, 0, 0, 0);
      mbarrier_arrive(full);
    }
    if (lane == 0) s.there[warp][turn % stages] = there;
  };
  int slot[stages];
  MEGA_UNROLL
  for (int i = 0; i < stages; ++i) slot[i] = choice(i);
  MEGA_UNROLL
  for (int i = 0; i < stages; ++i) {
    if (first_of(i) < end) bring(i, slot[i]);
  }
  for (int head = warp; head < columns; head += warps) {
    int source = first_head + head;
    stage_query(s, head, head < live ? query + row * query_row + source * query_head : nullptr);
    if (lane < rope / 8) {
      const bf16* place = query_rotated + row * rotated_row + source * rotated_head + 8 * lane;
      *reinterpret_cast<uint4*>(&s.rotated[head][8 * lane]) =
          head < live ? load_shared_by_step(place) : make_uint4(0, 0, 0, 0);
    }
  }
  block_sync();

  // The warp's running softmax of heads 2 t and 2 t + 1: peak (in all lanes of the same t), the lane's part of
  // the total, and the sums in units of value_unit.
  float sum[4][8][4] = {};
  float peak[2] = {nothing, nothing}, total[2] = {0.0f, 0.0f}, value_unit = unit_of(0.0f);
  float query_unit[2] = {s.query_unit[2 * t], s.query_unit[2 * t + 1]};
  int low = token_of(g), high = low + 8;
  for (int turn = 0; first_of(turn) < end; ++turn) {
    const u8* tokens = staged + (turn % stages) * group * Rows::stride;
    int next = choice(turn + stages);
    mbarrier_wait(s.full[warp][turn % stages], turn / stages & 1);
    u32 there = s.there[warp][turn % stages];
    if (there) {
      const u8 *low_row = tokens + low * Rows::stride, *high_row = tokens + high * Rows::stride;
      float part[4][4] = {}, rotated[2][4] = {};
      Rows::scores(low_row, high_row, part,
                   [&](int channel) { return *reinterpret_cast<const uint4*>(&s.query[g][channel]); });
      MEGA_UNROLL
      for (int i = 0; i < rope / 32; ++i) {
        uint4 x = *reinterpret_cast<const uint4*>(Rows::rotated(low_row) + 32 * i + 8 * t);
        uint4 y = *reinterpret_cast<const uint4*>(Rows::rotated(high_row) + 32 * i + 8 * t);
        uint4 q = *reinterpret_cast<const uint4*>(&s.rotated[g][32 * i + 8 * t]);
        mma_bf16(rotated[0], x.x, y.x, x.y, y.y, q.x, q.y);
        mma_bf16(rotated[1], x.z, y.z, x.w, y.w, q.z, q.w);
      }
      float block_scale[2][4], largest_scale = 0.0f;
      MEGA_UNROLL
      for (int b = 0; b < 4; ++b) {
        block_scale[0][b] = Rows::scale(low_row, b), block_scale[1][b] = Rows::scale(high_row, b);
        largest_scale = fmaxf(largest_scale, fmaxf(fabsf(block_scale[0][b]), fabsf(block_scale[1][b])));
      }
      bool chose[2] = {(there >> low & 1) != 0, (there >> high & 1) != 0};
      float score[2][2], best[2] = {peak[0], peak[1]};  // [token][head]
      MEGA_UNROLL
      for (int j = 0; j < 4; ++j) {
        float dot = 0.0f;
        MEGA_UNROLL
        for (int b = 0; b < 4; ++b) dot += part[b][j] * block_scale[j / 2][b];
        float value = (dot * query_unit[j % 2] + (rotated[0][j] + rotated[1][j])) * scale;
        score[j / 2][j % 2] = chose[j / 2] ? value : nothing;
        best[j % 2] = fmaxf(best[j % 2], score[j / 2][j % 2]);
      }
      MEGA_UNROLL
      for (int mask = 4; mask < 32; mask *= 2) {
        best[0] = fmaxf(best[0], shuffle_xor(best[0], mask));
        best[1] = fmaxf(best[1], shuffle_xor(best[1], mask));
        if (Rows::scaled) largest_scale = fmaxf(largest_scale, shuffle_xor(largest_scale, mask));
      }
      float unit = Rows::scaled ? fmaxf(value_unit, unit_of(largest_scale)) : value_unit;
      float inverse = inverse_unit(unit), rescale[2], weight[2][2];
      MEGA_UNROLL
      for (int h = 0; h < 2; ++h) {
        rescale[h] = exp2_fast(peak[h] - best[h]);
        MEGA_UNROLL
        for (int i = 0; i < 2; ++i) weight[i][h] = chose[i] ? exp2_fast(score[i][h] - best[h]) : 0.0f;
        total[h] = total[h] * rescale[h] + (weight[0][h] + weight[1][h]);
        rescale[h] *= value_unit * inverse;
        peak[h] = best[h];
      }
      value_unit = unit;
      if (warp_ballot(rescale[0] != 1.0f || rescale[1] != 1.0f)) {
        MEGA_UNROLL
        for (int b = 0; b < 4; ++b) MEGA_UNROLL
        for (int i = 0; i < 8; ++i) {
          sum[b][i][0] *= rescale[0], sum[b][i][2] *= rescale[0];
          sum[b][i][1] *= rescale[1], sum[b][i][3] *= rescale[1];
        }
      }
      u32 plain[2] = {transpose(pack(weight[0][0], weight[0][1])), transpose(pack(weight[1][0], weight[1][1]))};
      MEGA_UNROLL
      for (int b = 0; b < 4; ++b) {
        ValueFragment value[8];
        Rows::values(tokens, b, value);
        u32 w[2] = {plain[0], plain[1]};
        if (Rows::scaled) {
          MEGA_UNROLL
          for (int i = 0; i < 2; ++i) {
            float factor = block_scale[i][b] * inverse * weight_unit;
            w[i] = transpose(pack_half(weight[i][0] * factor, weight[i][1] * factor));
          }
        }
        MEGA_UNROLL
        for (int i = 0; i < 8; ++i) {
          const u32(&a)[4] = value[i].a;
          if (Rows::scaled) {
            mma_f16(sum[b][i], a[0], a[1], a[2], a[3], w[0], w[1]);
          } else {
            mma_bf16(sum[b][i], a[0], a[1], a[2], a[3], w[0], w[1]);
          }
        }
      }
    }
    warp_sync();
    if (first_of(turn + stages) < end) {
      proxy_fence();
      bring(turn + stages, next);
      warp_sync();
    }
  }

  MEGA_UNROLL
  for (int mask = 4; mask < 32; mask *= 2) {
    total[0] += shuffle_xor(total[0], mask);
    total[1] += shuffle_xor(total[1], mask);
  }
  if (g == 0) {
    MEGA_UNROLL
    for (int h = 0; h < 2; ++h) s.peak[warp][2 * t + h] = peak[h], s.total[warp][2 * t + h] = total[h];
  }
  block_sync();
  float best[2] = {nothing, nothing};
  MEGA_UNROLL
  for (int w = 0; w < warps; ++w) {
    best[0] = fmaxf(best[0], s.peak[w][2 * t]);
    best[1] = fmaxf(best[1], s.peak[w][2 * t + 1]);
  }
  // The warps' sums to shared memory, relative to the block's peak.
  auto exchange = [&](int w) {
    return reinterpret_cast<float*>(dynamic + w * stages * group * Rows::stride);
  };
  float unit = Rows::scaled ? value_unit * (1.0f / weight_unit) : 1.0f;
  MEGA_UNROLL
  for (int h = 0; h < 2; ++h) {
    float factor = total[h] == 0.0f ? 0.0f : exp2_fast(peak[h] - best[h]) * unit;
    MEGA_UNROLL
    for (int b = 0; b < 4; ++b) MEGA_UNROLL
    for (int i = 0; i < 8; i += 2) {
      const float(&x)[4] = sum[b][i], (&y)[4] = sum[b][i + 1];
      float* place = exchange(warp) + (2 * t + h) * exchange_stride + Rows::channel(b, i);
      *reinterpret_cast<float4*>(place) =
          make_float4(x[h] * factor, x[2 + h] * factor, y[h] * factor, y[2 + h] * factor);
    }
  }
  block_sync();
  i64 first = static_cast<i64>(row) * heads + first_head;
  for (int item = threadIdx.x; item < live * (latent / 4); item += threads) {
    int head = item / (latent / 4), channel = item % (latent / 4) * 4;
    float4 all = make_float4(0, 0, 0, 0);
    MEGA_UNROLL
    for (int w = 0; w < warps; ++w) {
      float4 v = *reinterpret_cast<const float4*>(exchange(w) + head * exchange_stride + channel);
      all.x += v.x, all.y += v.y, all.z += v.z, all.w += v.w;
    }
    store_vector(partial + ((first + head) * splits + split) * latent + channel,
                 make_uint4(float_bits(all.x), float_bits(all.y), float_bits(all.z), float_bits(all.w)));
  }
  if (warp == 0 && g == 0) {
    MEGA_UNROLL
    for (int h = 0; h < 2; ++h) {
      int head = 2 * t + h;
      float all = 0.0f;
      MEGA_UNROLL
      for (int w = 0; w < warps; ++w) all += s.total[w][head] * exp2_fast(s.peak[w][head] - best[h]);
      i64 place = (first + head) * splits + split;
      if (head < live) stats[2 * place] = best[h], stats[2 * place + 1] = all;
    }
  }
}

}  // namespace mega
