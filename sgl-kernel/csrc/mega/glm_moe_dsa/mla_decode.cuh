// SPDX-License-Identifier: Apache-2.0
// Sparse multi-head latent attention of decode and verify rows: each row attends the cached tokens that its
// indexer chose, and the latent is both key and value. A block serves one row and one split of its choice;
// mla_merge joins the splits.
//
// A rank holds few heads (8 of 64 at TP8). They are the columns of the tensor core's tile and tokens or
// channels its rows, so eight heads fill it and nothing is padded. Chosen tokens come by bulk copies, all that
// fit in shared memory at once. Queries are fp16 next to FP8 rows, each head scaled by its own power of two;
// weights carry the token's block scales.
//
// Constants: HEADS (1 to 16), TOP_K, FP8 (0 or 1), STAGES (tiles of 64 tokens in shared memory).
// Numerics: scores and softmax in fp32; e4m3 and bf16 values are exact in the products, scales are applied in
// fp32 to scores and, rounded with the weights to fp16 (to bf16 next to BF16 rows), to values; fp32 sums.
#include "common/barrier.cuh"
#include "common/math.cuh"
#include "common/pdl.cuh"
#include "common/reduce.cuh"
#include "glm_moe_dsa/kv_rows.cuh"

namespace mega {

constexpr int heads = MEGA_HEADS, top_k = MEGA_TOP_K, stages = MEGA_STAGES;
constexpr int groups = (heads + 7) / 8, columns = 8 * groups;  // tiles of heads, and heads with padding
constexpr int warps = 4, threads = 32 * warps, most_tiles = (top_k + tile - 1) / tile;
constexpr float nothing = -1e30f;
constexpr float weight_unit = 16384.0f;  // keeps small weights above fp16's subnormals
static_assert(heads >= 1 && heads <= 16 && top_k % 4 == 0, "one or two tiles of heads");
using Rows = Select<(MEGA_FP8 != 0), Fp8Rows, Bf16Rows>;

struct Scratch {
  alignas(16) bf16 query[columns][Rows::query_stride];  // fp16 bits next to FP8 rows
  alignas(16) bf16 rotated[columns][rope + 32];
  alignas(16) u16 weight[Rows::scaled ? 4 : 1][tile / 16][columns][16];
  MBarrier full[stages];
  u32 there[2][most_tiles];  // which tokens of each half of a tile are there
  float score[columns][tile + 4];
  float peak[columns], total[columns], rescale[columns], query_unit[columns];
  float value_unit;
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
// splits, 512] fp32 and stats: [rows, HEADS, splits, 2] fp32 (peak in log2 units, total). Grid: (splits, rows).
MEGA_KERNEL(mla_decode, threads, 1)
(const bf16* query, i64 query_row, i64 query_head, const bf16* query_rotated, i64 rotated_row,
 i64 rotated_head, const int* chosen, i64 chosen_row, const u8* cache, float scale, float* partial,
 float* stats) {
  MEGA_SHARED(Scratch, s);
  MEGA_DYNAMIC_SHARED(staged);  // [STAGES][64][Rows::stride]
  int warp = threadIdx.x / 32, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  int split = blockIdx.x, splits = gridDim.x, row = blockIdx.y;
  int chunk = ((top_k + splits - 1) / splits + 15) / 16 * 16;
  int begin = split * chunk < top_k ? split * chunk : top_k;
  int end = begin + chunk < top_k ? begin + chunk : top_k;
  int tiles = (end - begin + tile - 1) / tile;

  pdl_launch();
  if (threadIdx.x == 0) {
    MEGA_UNROLL
    for (int i = 0; i < stages; ++i) mbarrier_init(s.full[i], tile);
  }
  if (threadIdx.x < columns) {
    s.peak[threadIdx.x] = nothing;
    s.total[threadIdx.x] = 0.0f;
  }
  if (threadIdx.x == 0) s.value_unit = unit_of(0.0f);
  block_sync();
  pdl_wait();

  // The block's first 64 threads bring one token of a tile each; one that is not there reads as zero.
  const int* mine = chosen + row * chosen_row + begin;
  auto choice = [&](int index) {
    int token = tile * index + static_cast<int>(threadIdx.x);
    return token < end - begin ? static_cast<int>(load_step_word(mine + token)) : -1;
  };
  auto bring = [&](int index, int slot) {
    u8* place = staged + ((index % stages) * tile + threadIdx.x) * Rows::stride;
    MBarrier& full = s.full[index % stages];
    if (slot >= 0) {
      mbarrier_expect(full, Rows::bytes);
      bulk_copy(place, cache + static_cast<i64>(slot) * Rows::bytes, Rows::bytes, full);
    } else {
      MEGA_UNROLL_BY(4)
      for (int i = 0; i < Rows::bytes; i += 16)
        *reinterpret_cast<uint4*>(place + i) = make_uint4(0, 0, 0, 0);
      mbarrier_arrive(full);
    }
    u32 there = warp_ballot(slot >= 0);
    if (lane == 0) s.there[warp][index] = there;
  };
  if (threadIdx.x < tile) {
    int slot[stages];
    MEGA_UNROLL
    for (int i = 0; i < stages; ++i) slot[i] = i < tiles ? choice(i) : -1;
    MEGA_UNROLL
    for (int i = 0; i < stages; ++i) {
      if (i < tiles) bring(i, slot[i]);
    }
  }
  for (int head = warp; head < columns; head += warps) {
    const bf16* source = query + row * query_row + head * query_head;
    stage_query(s, head, head < heads ? source : nullptr);
    if (lane < rope / 8) {
      const bf16* place = query_rotated + row * rotated_row + head * rotated_head + 8 * lane;
      *reinterpret_cast<uint4*>(&s.rotated[head][8 * lane]) =
          head < heads ? load_shared_by_step(place) : make_uint4(0, 0, 0, 0);
    }
  }
  block_sync();

  float sum[groups][8][4] = {};
  bool seen = false;
  for (int index = 0; index < tiles; ++index) {
    const u8* tokens = staged + (index % stages) * tile * Rows::stride;
    u32 there[2] = {s.there[0][index], s.there[1][index]};
    mbarrier_wait(s.full[index % stages], index / stages & 1);
    if (there[0] | there[1]) {
      seen = true;
      // Scores of the warp's 16 tokens. Neighbouring rows of the tile are tokens two apart, for the banks.
      int low = 16 * warp + ((g & 4) | (g & 1) << 1 | (g >> 1 & 1)), high = low + 8;
      const u8 *low_row = tokens + low * Rows::stride, *high_row = tokens + high * Rows::stride;
      MEGA_UNROLL
      for (int n = 0; n < groups; ++n) {
        float part[4][4] = {}, rotated[4] = {};
        Rows::scores(low_row, high_row, part, [&](int channel) {
          return *reinterpret_cast<const uint4*>(&s.query[8 * n + g][channel]);
        });
        MEGA_UNROLL
        for (int i = 0; i < rope / 32; ++i) {
          uint4 x = *reinterpret_cast<const uint4*>(Rows::rotated(low_row) + 32 * i + 8 * t);
          uint4 y = *reinterpret_cast<const uint4*>(Rows::rotated(high_row) + 32 * i + 8 * t);
          uint4 q = *reinterpret_cast<const uint4*>(&s.rotated[8 * n + g][32 * i + 8 * t]);
          mma_bf16(rotated, x.x, y.x, x.y, y.y, q.x, q.y);
          mma_bf16(rotated, x.z, y.z, x.w, y.w, q.z, q.w);
        }
        MEGA_UNROLL
        for (int j = 0; j < 4; ++j) {
          const u8* token_row = j < 2 ? low_row : high_row;
          int head = 8 * n + 2 * t + j % 2;
          float dot = 0.0f;
          MEGA_UNROLL
          for (int b = 0; b < 4; ++b) dot += part[b][j] * Rows::scale(token_row, b);
          s.score[head][j < 2 ? low : high] = (dot * s.query_unit[head] + rotated[j]) * scale;
        }
      }
      block_sync();

      // The running softmax, a warp a head, two tokens a lane; weights for the second product.
      int token[2] = {lane, lane + 32};
      bool chose[2];
      float largest_scale = 0.0f, block_scale[2][4];
      MEGA_UNROLL
      for (int i = 0; i < 2; ++i) {
        chose[i] = there[i] >> lane & 1;
        MEGA_UNROLL
        for (int b = 0; b < 4; ++b) {
          block_scale[i][b] = Rows::scale(tokens + token[i] * Rows::stride, b);
          largest_scale = fmaxf(largest_scale, fabsf(block_scale[i][b]));
        }
      }
      float old_unit = s.value_unit;
      float unit = Rows::scaled ? fmaxf(old_unit, unit_of(warp_max_float(largest_scale))) : old_unit;
      float inverse = inverse_unit(unit);
      for (int head = warp; head < columns; head += warps) {
        float score[2], peak = s.peak[head], added = 0.0f;
        MEGA_UNROLL
        for (int i = 0; i < 2; ++i) score[i] = chose[i] ? s.score[head][token[i]] : nothing;
        float best = fmaxf(warp_max_float(fmaxf(score[0], score[1])), peak);
        MEGA_UNROLL
        for (int i = 0; i < 2; ++i) {
          float weight = chose[i] ? exp2_fast(score[i] - best) : 0.0f;
          added += weight;
          int group = token[i] / 16, place = token[i] % 4 * 4 + token[i] % 16 / 4;
          MEGA_UNROLL
          for (int b = 0; b < (Rows::scaled ? 4 : 1); ++b) {
            float scaled = weight * block_scale[i][b] * inverse * weight_unit;
            s.weight[b][group][head][place] =
                static_cast<u16>(Rows::scaled ? pack_half(scaled, 0.0f) : pack(weight, 0.0f));
          }
        }
        added = warp_sum(added);
        if (lane == 0) {
          float rescale = exp2_fast(peak - best);
          s.rescale[head] = Rows::scaled ? rescale * (old_unit * inverse) : rescale;
          s.total[head] = s.total[head] * rescale + added;
          s.peak[head] = best;
        }
      }
      block_sync();
      if (threadIdx.x == 0) s.value_unit = unit;

      // Weighted values: the warp's 128 channels of all tokens.
      MEGA_UNROLL
      for (int n = 0; n < groups; ++n) {
        float even = s.rescale[8 * n + 2 * t], odd = s.rescale[8 * n + 2 * t + 1];
        MEGA_UNROLL
        for (int i = 0; i < 8; ++i) {
          sum[n][i][0] *= even, sum[n][i][2] *= even;
          sum[n][i][1] *= odd, sum[n][i][3] *= odd;
        }
      }
      MEGA_UNROLL
      for (int group = 0; group < tile / 16; ++group) {
        ValueFragment value[8];
        Rows::values(tokens + 16 * group * Rows::stride, warp, value);
        MEGA_UNROLL
        for (int n = 0; n < groups; ++n) {
          uint2 w =
              *reinterpret_cast<const uint2*>(&s.weight[Rows::scaled ? warp : 0][group][8 * n + g][4 * t]);
          MEGA_UNROLL
          for (int i = 0; i < 8; ++i) {
            const u32(&a)[4] = value[i].a;
            if (Rows::scaled) {
              mma_f16(sum[n][i], a[0], a[1], a[2], a[3], w.x, w.y);
            } else {
              mma_bf16(sum[n][i], a[0], a[1], a[2], a[3], w.x, w.y);
            }
          }
        }
      }
    }
    block_sync();
    if (threadIdx.x < tile && index + stages < tiles) {
      proxy_fence();
      bring(index + stages, choice(index + stages));
    }
    if (stages < most_tiles) block_sync();  // what the tile just asked for holds
  }

  float unit = Rows::scaled ? s.value_unit * (1.0f / weight_unit) : 1.0f;
  MEGA_UNROLL
  for (int n = 0; n < groups; ++n) MEGA_UNROLL
  for (int odd = 0; odd < 2; ++odd) {
    int head = 8 * n + 2 * t + odd;
    if (head >= heads || !seen) continue;
    i64 place = ((static_cast<i64>(row) * heads + head) * splits + split) * latent;
    MEGA_UNROLL
    for (int i = 0; i < 8; i += 2) {
      const float(&x)[4] = sum[n][i], (&y)[4] = sum[n][i + 1];
      store_vector(partial + place + Rows::channel(warp, i),
                   make_uint4(float_bits(x[odd] * unit), float_bits(x[2 + odd] * unit),
                              float_bits(y[odd] * unit), float_bits(y[2 + odd] * unit)));
    }
  }
  if (threadIdx.x < heads) {
    i64 place = (static_cast<i64>(row) * heads + threadIdx.x) * splits + split;
    stats[2 * place] = s.peak[threadIdx.x], stats[2 * place + 1] = s.total[threadIdx.x];
  }
}

}  // namespace mega
