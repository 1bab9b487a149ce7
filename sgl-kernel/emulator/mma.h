// SPDX-License-Identifier: Apache-2.0
// Emulator side of common/mma.cuh: the last lane to arrive computes the whole tile, products in fp32, k in
// order.
#pragma once

#include "convert.h"
#include "reduce.h"

namespace emulator {

struct MmaOperands {
  float d[4];
  uint32_t a[4], b[2];
};
static_assert(sizeof(MmaOperands) <= sizeof(WarpExchange::bulk[0]));

// The two 16-bit elements of each A and B word, decoded by `decode`; D and the results are m16n8 in fp32.
template <float (*decode)(uint16_t)>
void mma_tile(WarpExchange& exchange) {
  alignas(64) float a[16][16], b[16][8], d[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    MmaOperands in;
    std::memcpy(&in, exchange.bulk[lane], sizeof in);
    const int group = lane / 4, pair = lane % 4 * 2;
    for (int word = 0; word < 4; ++word) {
      for (int half = 0; half < 2; ++half) {
        a[group + 8 * (word & 1)][pair + 8 * (word / 2) + half] =
            decode(static_cast<uint16_t>(in.a[word] >> 16 * half));
      }
    }
    for (int word = 0; word < 2; ++word) {
      for (int half = 0; half < 2; ++half) {
        b[pair + 8 * word + half][group] = decode(static_cast<uint16_t>(in.b[word] >> 16 * half));
      }
    }
    for (int i = 0; i < 4; ++i) d[group + 8 * (i / 2)][pair + i % 2] = in.d[i];
  }
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < 16; ++k) {
      for (int column = 0; column < 8; ++column) d[row][column] += a[row][k] * b[k][column];
    }
  }
  std::memcpy(exchange.scratch, d, sizeof d);
}

template <float (*decode)(uint16_t)>
void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  MmaOperands in;
  std::memcpy(in.d, d, sizeof in.d);
  std::memcpy(in.a, a, sizeof in.a);
  std::memcpy(in.b, b, sizeof in.b);
  const WarpArrival arrival = warp_arrive(~0u, WarpOp::mma, 0, &in, sizeof in);
  if (arrival.last) {
    mma_tile<decode>(*arrival.exchange);
    warp_release(~0u);
  } else {
    warp_wait(~0u);
  }
  const auto* results = reinterpret_cast<const float (*)[8]>(arrival.exchange->scratch);
  const unsigned group = lane() / 4, pair = lane() % 4 * 2;
  for (unsigned i = 0; i < 4; ++i) d[i] = results[group + 8 * (i / 2)][pair + i % 2];
}

}  // namespace emulator

namespace mega {

MEGA_DEVICE void mma_bf16(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  emulator::mma<emulator::bf16_to_float>(d, {a0, a1, a2, a3}, {b0, b1});
}

MEGA_DEVICE void mma_f16(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  emulator::mma<emulator::f16_to_float>(d, {a0, a1, a2, a3}, {b0, b1});
}

// The last lane reads all rows, so that no lane can overwrite what another has yet to read.
MEGA_DEVICE void ldmatrix_x4(u32 (&r)[4], const void* shared_row) {
  const auto arrival =
      emulator::warp_arrive(~0u, emulator::WarpOp::mma, emulator::word_of(shared_row), nullptr, 0);
  if (arrival.last) {
    for (unsigned lane = 0; lane < 32; ++lane) {
      for (unsigned matrix = 0; matrix < 4; ++matrix) {
        const auto* row =
            emulator::value_of<const unsigned char*>(arrival.exchange->values[matrix * 8 + lane / 4]);
        std::memcpy(&arrival.exchange->scratch[lane * 4 + matrix], row + 4 * (lane % 4), 4);
      }
    }
    emulator::warp_release(~0u);
  } else {
    emulator::warp_wait(~0u);
  }
  std::memcpy(r, &arrival.exchange->scratch[emulator::lane() * 4], sizeof r);
}

MEGA_DEVICE u32 transpose(u32 pair) {
  const int g = static_cast<int>(emulator::lane()) / 4, t = static_cast<int>(emulator::lane()) % 4;
  const u32 first = shuffle(pair, 8 * t + g / 2), second = shuffle(pair, 8 * t + 4 + g / 2);
  return (first >> 16 * (g % 2) & 0xffffu) | (second >> 16 * (g % 2)) << 16;
}

}  // namespace mega
