// SPDX-License-Identifier: Apache-2.0
// The two layouts of a cached token of sparse MLA, 512 latent channels and 64 rotated ones, and how a warp's
// lanes read fragments of them from shared memory.
//
// FP8 (656 bytes, SGLang's flashmla_kv): 512 e4m3, four fp32 scales of 128 channels each, 64 bf16.
// BF16 (1152 bytes): 576 bf16.
// Rows lie 32 bytes more than a multiple of 128 apart: then both ways of reading touch every bank once.
#pragma once
#include "common/dequant.cuh"
#include "common/half.cuh"
#include "common/mma.cuh"
#include "common/types.cuh"

namespace mega {

constexpr int latent = 512, rope = 64;
constexpr int group = 16;  // tokens that a warp scores together

// The token of the group that is row r (0 to 7) of a product's tile; rows 8 to 15 are 8 further. Both ways of
// reading touch every bank once in this order.
MEGA_DEVICE int token_of(int r) { return 0x57463120u >> 4 * r & 7; }

// A tile of 16 channels by 16 tokens: see `values`.
struct ValueFragment {
  u32 a[4];
};

MEGA_DEVICE void unpack_words(u32 (&words)[4], uint4 v) {
  words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
}

struct Fp8Rows {
  static constexpr int bytes = latent + 4 * 4 + 2 * rope, stride = bytes + 16;
  static constexpr int query_stride = latent + 8;  // of 16-bit elements, likewise free of bank conflicts
  static constexpr bool scaled = true;             // products in fp16 with a scale a block, else in bf16

  // Scores of 16 tokens (rows g and g + 8 are `low` and `high`) against 8 queries, without the rotated part:
  // sum[b] += the part of scale block b. `query(d)`: 8 fp16 from channel d of query g.
  template <class Query>
  static MEGA_DEVICE void scores(const u8* low, const u8* high, float (&sum)[4][4], Query query) {
    int t = threadIdx.x & 3;
    MEGA_UNROLL
    for (int half = 0; half < 2; ++half) {
      u32 x[4][4], y[4][4], q[4][8];
      MEGA_UNROLL
      for (int b = 0; b < 4; ++b) {
        int channel = 128 * b + 64 * half + 16 * t;
        unpack_words(x[b], *reinterpret_cast<const uint4*>(low + channel));
        unpack_words(y[b], *reinterpret_cast<const uint4*>(high + channel));
        uint4 q0 = query(channel), q1 = query(channel + 8);
        q[b][0] = q0.x, q[b][1] = q0.y, q[b][2] = q0.z, q[b][3] = q0.w;
        q[b][4] = q1.x, q[b][5] = q1.y, q[b][6] = q1.z, q[b][7] = q1.w;
      }
      MEGA_UNROLL
      for (int s = 0; s < 4; ++s) {
        MEGA_UNROLL
        for (int b = 0; b < 4; ++b) {  // neighbouring products belong to different sums
          mma_f16(sum[b], e4m3x2_to_f16x2(x[b][s]), e4m3x2_to_f16x2(y[b][s]), e4m3x2_to_f16x2(x[b][s] >> 16),
                  e4m3x2_to_f16x2(y[b][s] >> 16), q[b][2 * s], q[b][2 * s + 1]);
        }
      }
    }
  }

  static MEGA_DEVICE const bf16* rotated(const u8* row) {
    return reinterpret_cast<const bf16*>(row + latent + 16);
  }
  static MEGA_DEVICE float scale(const u8* row, int block) {
    return reinterpret_cast<const float*>(row + latent)[block];
  }

  // Block b of 128 channels: `channel` and the next are rows g and g + 8 of tile i.
  static MEGA_DEVICE int channel(int b, int i) { return 128 * b + 16 * ((threadIdx.x & 31) >> 2) + 2 * i; }
  static MEGA_DEVICE void values(const u8* tokens, int b, ValueFragment (&out)[8]) {
    int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
    u32 w[4][4];
    MEGA_UNROLL
    for (int j = 0; j < 4; ++j) {
      const u8* token = tokens + (token_of(2 * t + j % 2) + 8 * (j / 2)) * stride;
      unpack_words(w[j], *reinterpret_cast<const uint4*>(token + 128 * b + 16 * g));
    }
    MEGA_UNROLL
    for (int q = 0; q < 4; ++q) {
      MEGA_UNROLL
      for (int pair = 0; pair < 2; ++pair) {
        u32 first = w[2 * pair][q], second = w[2 * pair + 1][q];
        u32 low = pick_bytes<0x5140>(first, second), high = pick_bytes<0x7362>(first, second);
        out[2 * q].a[2 * pair] = e4m3x2_to_f16x2(low);
        out[2 * q].a[2 * pair + 1] = e4m3x2_to_f16x2(low >> 16);
        out[2 * q + 1].a[2 * pair] = e4m3x2_to_f16x2(high);
        out[2 * q + 1].a[2 * pair + 1] = e4m3x2_to_f16x2(high >> 16);
      }
    }
  }
};

struct Bf16Rows {
  static constexpr int bytes = 2 * (latent + rope), stride = bytes + 32;
  static constexpr int query_stride = latent + 32;
  static constexpr bool scaled = false;

  // As above with bf16 queries; the four sums are parts of one.
  template <class Query>
  static MEGA_DEVICE void scores(const u8* low, const u8* high, float (&sum)[4][4], Query query) {
    int t = threadIdx.x & 3;
    MEGA_UNROLL
    for (int i = 0; i < latent / 32; ++i) {
      uint4 x = *reinterpret_cast<const uint4*>(low + 64 * i + 16 * t);
      uint4 y = *reinterpret_cast<const uint4*>(high + 64 * i + 16 * t);
      uint4 q = query(32 * i + 8 * t);
      mma_bf16(sum[2 * i % 4], x.x, y.x, x.y, y.y, q.x, q.y);
      mma_bf16(sum[2 * i % 4 + 1], x.z, y.z, x.w, y.w, q.z, q.w);
    }
  }

  static MEGA_DEVICE const bf16* rotated(const u8* row) {
    return reinterpret_cast<const bf16*>(row) + latent;
  }
  static MEGA_DEVICE float scale(const u8*, int) { return 1.0f; }

  static MEGA_DEVICE int channel(int b, int i) {
    return 128 * b + 64 * (i / 4) + 8 * ((threadIdx.x & 31) >> 2) + 2 * (i % 4);
  }
  static MEGA_DEVICE void values(const u8* tokens, int b, ValueFragment (&out)[8]) {
    int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
    MEGA_UNROLL
    for (int m = 0; m < 2; ++m) {
      u32 w[4][4];
      MEGA_UNROLL
      for (int j = 0; j < 4; ++j) {
        const u8* token = tokens + (token_of(2 * t + j % 2) + 8 * (j / 2)) * stride;
        unpack_words(w[j], *reinterpret_cast<const uint4*>(token + 2 * (128 * b + 64 * m + 8 * g)));
      }
      MEGA_UNROLL
      for (int q = 0; q < 4; ++q) {
        MEGA_UNROLL
        for (int pair = 0; pair < 2; ++pair) {
          out[4 * m + q].a[2 * pair] = pick_bytes<0x5410>(w[2 * pair][q], w[2 * pair + 1][q]);
          out[4 * m + q].a[2 * pair + 1] = pick_bytes<0x7632>(w[2 * pair][q], w[2 * pair + 1][q]);
        }
      }
    }
  }
};

}  // namespace mega
