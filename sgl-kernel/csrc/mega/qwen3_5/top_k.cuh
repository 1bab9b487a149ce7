// SPDX-License-Identifier: Apache-2.0
// Softmax top-k with renormalisation, one warp a row. Every consumer selects for itself from the logits: that
// takes less than a ticket for the router's last block and a reload of its answer.
//
// The softmax over all experts and the division by the selected sum cancel to a softmax over the selected
// ones. Of equal logits the lowest expert wins; NaN loses to everything.
#pragma once
#include "common/math.cuh"
#include "common/memory.cuh"
#include "common/reduce.cuh"

namespace mega {

template <int rows, int experts, int top_k>
struct Selection {
  static_assert(top_k <= experts && top_k <= 32 && experts <= 0xffff,
                "a lane holds a pick, a key 16 bits of number");
  static constexpr int stride = (experts + 15) / 16 * 16;  // of a row of logits
  static constexpr int vectors = (experts + 255) / 256;    // of eight neighbouring logits, a lane

  int expert[rows][top_k];  // by falling logit; -1 in rows that are padding
  float weight[rows][top_k];

  // One warp. logits: one row, bf16, written by an earlier kernel that is known to have completed.
  MEGA_DEVICE void select(int row, const bf16* logits, bool live) {
    int lane = threadIdx.x & 31;
    u32 key[8 * vectors];
    MEGA_UNROLL
    for (int v = 0; v < vectors; ++v) {
      int base = 8 * (32 * v + lane);
      uint4 words = base < stride ? load_shared_by_step(logits + base) : make_uint4(0, 0, 0, 0);
      u32 pair[4] = {words.x, words.y, words.z, words.w};
      MEGA_UNROLL
      for (int i = 0; i < 4; ++i) {
        int first = base + 2 * i;
        key[8 * v + 2 * i] = ordered(pair[i] << 16, first);
        key[8 * v + 2 * i + 1] = ordered(pair[i] & 0xffff0000u, first + 1);
      }
    }
    u32 mine = 0;
    for (int k = 0; k < top_k; ++k) {
      u32 best = key[0];
      MEGA_UNROLL
      for (int i = 1; i < 8 * vectors; ++i) best = best > key[i] ? best : key[i];
      best = warp_max(best);
      if (lane == k) mine = best;
      MEGA_UNROLL
      for (int i = 0; i < 8 * vectors; ++i) key[i] = key[i] == best ? 0 : key[i];
    }
    float logit = value(mine), top = shuffle(logit, 0);
    float e = lane < top_k ? exp_fast(logit - top) : 0.0f;
    float total = warp_sum(e);
    if (lane < top_k) {
      expert[row][lane] = live ? static_cast<int>(0xffffu - (mine & 0xffffu)) : -1;
      weight[row][lane] = e / total;
    }
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
