// What an instruction set with products of bytes implements, and where it keeps rounded numbers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/common/attention/attention.h"
#include "ops/common/rows.h"

namespace attenuator::softmax {

using attention::BlockKeys;
using attention::Head;
using attention::kQueryBlock;

// Entry points of one instruction set.
struct Int8Kernels {
  // Memory that rounded keys and values of a head take, a multiple of 64.
  std::int64_t (*rounded_bytes)(const Head& head);
  // Rounds keys and values.
  void (*round)(const Head& head, std::byte* rounded);
  // Rows [begin, end), at most kQueryBlock of them. Bit i of the result: rounding moved the sum of
  // row begin + i too much, so that its output is not to be used; it gives no key a maximum.
  // All bits where no int8 stands for keys or values. `maxima` may be null. `scratch` is 64-byte
  // aligned and holds Int8ScratchFloats(head, maxima != nullptr).
  std::uint64_t (*attend)(const Head& head, const std::byte* rounded, std::int64_t begin,
                          std::int64_t end, float* output, std::int64_t output_stride,
                          float* maxima, float* scratch);
};

const Int8Kernels& Int8KernelsAvx512Vnni();
const Int8Kernels& Int8KernelsAvx512Amx();

// Keys that are scored before their values are added up. Boundaries lie at multiples of it from
// the start of the sequence, whatever the rows, so that no row's sums depend on its neighbours.
inline constexpr std::int64_t kInt8KeyBlock = 128;

// Products take four numbers at a time: depths and keys are padded to fours.
constexpr std::int64_t Fours(std::int64_t count) { return (count + 3) / 4 * 4; }

// The most pieces that ForKeyBlocks cuts the keys of a row block into.
constexpr std::int64_t Int8Pieces(const Head& head) { return BlockKeys(head) / kInt8KeyBlock + 4; }

// Weights, a byte each, that a row block keeps: of one key block, or of all keys for maxima. Tiles
// read up to 60 keys more, as zeros.
constexpr std::int64_t Int8WeightFloats(const Head& head, bool maxima) {
  const std::int64_t keys = BlockKeys(head) + 8 * Int8Pieces(head) + 60;
  return kQueryBlock / 4 * (maxima && keys > kInt8KeyBlock ? keys : kInt8KeyBlock);
}

// What Int8Scratch in int8_round.inl lays out.
constexpr std::int64_t Int8ScratchFloats(const Head& head, bool maxima) {
  const std::int64_t depth = PaddedToVectors(head.head_dim);
  return kQueryBlock * (kInt8KeyBlock + depth / 4 + PaddedToVectors(head.value_dim) + 11) +
         kWidestVector * depth / 4 + Int8WeightFloats(head, maxima) +
         (maxima ? kQueryBlock * Int8Pieces(head) : 0);
}

}  // namespace attenuator::softmax
