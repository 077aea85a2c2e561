// What an instruction set with products of bytes implements, and where it keeps rounded numbers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/common/attention/attention.h"
#include "ops/common/rows.h"

namespace attenuator::softmax {

// Entry points of one instruction set.
struct Int8Kernels {
  // Rounds keys and values; false where no int8 stands for them.
  void (*round)(const attention::Head& head, std::byte* rounded);
  // Rows [begin, end); `maxima` may be null. `scratch` is 64-byte aligned and holds
  // Int8ScratchFloats(head, maxima != nullptr).
  void (*attend)(const attention::Head& head, const std::byte* rounded, std::int64_t begin,
                 std::int64_t end, float* output, std::int64_t output_stride, float* maxima,
                 float* scratch);
};

const Int8Kernels& Int8KernelsAvx512Vnni();

using attention::BlockKeys;
using attention::Head;
using attention::kQueryBlock;

// Keys that are scored before their values are added up; boundaries as of
// kKeyBlock in ops/common/attention/cpu/paths.h.
inline constexpr std::int64_t kInt8KeyBlock = 128;

// Products take four numbers at a time: depths and keys are padded to fours.
constexpr std::int64_t Fours(std::int64_t count) { return (count + 3) / 4 * 4; }

// Rounded keys and values of a head, as they lie in memory.
struct Rounded {
  // A key's number times its query's is this much of the score's power of two; NaN where no int8
  // stands for keys or values.
  float* key_factor;
  float* value_scale;   // [padded value_dim], of each column
  float* value_mean;    // [padded value_dim], which was subtracted before rounding
  std::int8_t* values;  // [keys / 4, padded value_dim, 4]
  std::uint8_t* keys;   // [keys, head_dim in fours]: the number plus 128

  Rounded(const attention::Head& head, std::byte* memory)
      : key_factor(reinterpret_cast<float*>(memory)),
        value_scale(key_factor + kWidestVector),
        value_mean(value_scale + PaddedToVectors(head.value_dim)),
        values(reinterpret_cast<std::int8_t*>(value_mean + PaddedToVectors(head.value_dim))),
        keys(reinterpret_cast<std::uint8_t*>(values) +
             Fours(head.length) * PaddedToVectors(head.value_dim)) {}

  bool usable() const { return *key_factor == *key_factor; }
};

// The most pieces that ForKeys cuts the keys of a row block into.
constexpr std::int64_t Int8Pieces(const attention::Head& head) {
  return BlockKeys(head) / kInt8KeyBlock + 3;
}

// Weights, a byte each, that a row block keeps: of one key block, or of all keys for maxima.
constexpr std::int64_t Int8WeightFloats(const attention::Head& head, bool maxima) {
  const std::int64_t keys = BlockKeys(head) + 8 * Int8Pieces(head);
  return kQueryBlock / 4 * (maxima && keys > kInt8KeyBlock ? keys : kInt8KeyBlock);
}

// What Int8Scratch in int8_round.inl lays out.
constexpr std::int64_t Int8ScratchFloats(const attention::Head& head, bool maxima) {
  const std::int64_t depth = PaddedToVectors(head.head_dim);
  return kQueryBlock * (kInt8KeyBlock + depth / 4 + PaddedToVectors(head.value_dim) + 9) +
         kWidestVector * depth / 4 + Int8WeightFloats(head, maxima) +
         (maxima ? kQueryBlock * Int8Pieces(head) : 0);
}

}  // namespace attenuator::softmax
