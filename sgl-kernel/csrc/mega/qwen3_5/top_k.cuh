// SPDX-License-Identifier: Apache-2.0
// Softmax top-k with renormalisation. Every consumer selects for itself from the logits: that takes less than a
// ticket for the router's last block and a reload of its answer.
//
// Eight warps share the rows. A warp takes its part's TOP_K best keys one after another (a maximum over the warp
// each); then each candidate of a row counts how many of the row's candidates beat it. The softmax over all experts
// and the division by the selected sum cancel to a softmax over the selected ones. Of equal logits the lowest expert
// wins; NaN loses to everything.
#pragma once
#include "common/math.cuh"
#include "common/memory.cuh"
#include "common/reduce.cuh"

namespace mega {

template <int rows, int experts, int top_k>
struct Selection {
  static_assert(top_k <= experts && top_k <= 32 && experts <= 0xffff, "a lane holds a pick, a key 16 bits of number");
  static constexpr int stride = (experts + 15) / 16 * 16;  // of a row of logits
  static constexpr int warps = 8, parts = warps / rows;    // warps a row
  static constexpr int pairs = (stride / 2 + 32 * parts - 1) / (32 * parts);  // of neighbouring logits, a lane
  static constexpr int candidates = parts * top_k;

  int expert[rows][top_k];  // by falling logit; -1 in rows that are padding
  float logit[rows][top_k];
  u32 key[rows][candidates];

  struct Words {
    u32 pair[pairs];
  };

  // The first eight warps: load, pick, block_sync, rank, block_sync.
  // logits: [rows, stride] bf16, written by an earlier kernel that is known to have completed.
  static MEGA_DEVICE Words load(const bf16* logits, int live_rows) {
    int row = row_of_warp();
    Words words = {};
    MEGA_UNROLL
    for (int i = 0; i < pairs; ++i)
      if (row < live_rows && number_of(i) < stride)
        words.pair[i] = load_step_word(logits + row * stride + number_of(i));
    return words;
  }

  MEGA_DEVICE void pick(const Words& words, int live_rows) {
    int lane = threadIdx.x & 31, row = row_of_warp(), part = threadIdx.x / 32 % parts;
    if (row >= live_rows) return;
    u32 mine[2 * pairs];
    MEGA_UNROLL
    for (int i = 0; i < pairs; ++i) {
      mine[2 * i] = ordered(words.pair[i] << 16, number_of(i));
      mine[2 * i + 1] = ordered(words.pair[i] & 0xffff0000u, number_of(i) + 1);
    }
    u32 kept = 0;
    MEGA_UNROLL
    for (int k = 0; k < top_k; ++k) {
      u32 best = largest<0, 2 * pairs>(mine);
      best = warp_max(best);
      kept = lane == k ? best : kept;
      MEGA_UNROLL
      for (int i = 0; i < 2 * pairs; ++i) mine[i] = mine[i] == best ? 0 : mine[i];
    }
    if (lane < top_k) key[row][part * top_k + lane] = kept;
  }

  // Every thread; `state_index` says which rows are padding. The best candidates get their places and weights.
  MEGA_DEVICE void rank(const int* state_index, int live_rows) {
    for (int i = threadIdx.x; i < rows * candidates; i += blockDim.x) {
      int row = i / candidates;
      if (row >= live_rows) {
        if (i % candidates < top_k) expert[row][i % candidates] = -1;
        continue;
      }
      u32 mine = key[row][i % candidates];
      int place = 0;
      MEGA_UNROLL
      for (int j = 0; j < candidates; ++j) place += key[row][j] > mine;
      if (place >= top_k || mine == 0) continue;
      expert[row][place] = state_index[row] >= 0 ? static_cast<int>(0xffffu - (mine & 0xffffu)) : -1;
      logit[row][place] = value(mine);
    }
  }

  // The weight of a slot, 0 for slot -1.
  MEGA_DEVICE float share(int row, int slot) const {
    if (slot < 0) return 0.0f;
    float top = logit[row][0], total = 0.0f;
    MEGA_UNROLL
    for (int k = 0; k < top_k; ++k) total += exp_fast(logit[row][k] - top);
    return exp_fast(logit[row][slot] - top) / total;
  }

  // The slot in which a row picked this expert, or -1.
  MEGA_DEVICE int slot_of(int row, int wanted) const {
    int found = -1;
    MEGA_UNROLL
    for (int k = 0; k < top_k; ++k) found = expert[row][k] == wanted ? k : found;
    return found;
  }

  // Whether an earlier row picked this expert: then that row's block or warp serves both.
  MEGA_DEVICE bool picked_before(int row, int wanted) const {
    bool found = false;
    for (int earlier = 0; earlier < row; ++earlier) found = found || slot_of(earlier, wanted) >= 0;
    return found;
  }

 private:
  static MEGA_DEVICE int row_of_warp() { return threadIdx.x / 32 / parts; }
  // The first of the lane's i-th pair of experts.
  static MEGA_DEVICE int number_of(int i) {
    int part = threadIdx.x / 32 % parts, lane = threadIdx.x & 31;
    return 2 * ((part * pairs + i) * 32 + lane);
  }
  template <int first, int count>
  static MEGA_DEVICE u32 largest(const u32 (&keys)[2 * pairs]) {
    if constexpr (count == 1) {
      return keys[first];
    } else {
      u32 a = largest<first, count / 2>(keys), b = largest<first + count / 2, count - count / 2>(keys);
      return a > b ? a : b;
    }
  }
  // 16 bits that order as the bf16 in the high half of `word`, then the complement of the expert's number.
  static MEGA_DEVICE u32 ordered(u32 word, int number) {
    u32 order = word & 0x80000000u ? ~word & 0xffff0000u : word | 0x80000000u;
    if ((word & 0x7fffffffu) > 0x7f800000u) order = 0;
    if (number >= experts) return 0;
    return order | (0xffffu - static_cast<u32>(number));
  }
  static MEGA_DEVICE float value(u32 key) {
    u32 order = key & 0xffff0000u;
    return bits_float(order & 0x80000000u ? order & 0x7fff0000u : ~order & 0xffff0000u);
  }
};

}  // namespace mega
