// The inputs of one run of YosoAttention, checked: the same for the CPU and the CUDA operator.
#pragma once

#include <cstdint>
#include <utility>

#include "operators.gen.h"
#include "ops/common/check.h"
#include "ops/common/context.h"

namespace attenuator::yoso {

// What a head's row of sums is divided by; the attribute normalize.
enum class Normalize { kAverage = 0, kNorm = 1, kSum = 2 };

// Sums of a row's weights below it count as it.
inline constexpr float kSumFloor = 1e-30f;

struct Inputs {
  TensorView query;        // [T, H * D]; [B, H * D] where `first`
  TensorView key;          // [T, H * D]
  TensorView value;        // [T, H * Dv]
  TensorView conv_weight;  // [H, taps], or absent
  Sequences sequences;
  const std::int32_t* num_hashes;  // [B]
  const std::int64_t* seed;        // [B]
  std::int64_t head_dim;           // D
  std::int64_t value_dim;          // Dv
  bool first;                      // row b of query is the first row of sequence b

  // The rows of sequence b in query and output: first row and number.
  std::pair<std::int64_t, std::int64_t> QueryRows(std::int64_t b) const {
    if (first) return {b, 1};
    return {sequences.begin(b), sequences.length(b)};
  }
};

// Throws std::invalid_argument where a value of an attribute that the spec cannot bound is out of
// range.
void CheckAttributes(const spec::YosoAttention::Attributes& attributes);

// Throws std::invalid_argument where an input is wrong or does not fit the others.
Inputs CheckInputs(const TensorContext& context, const spec::YosoAttention::Attributes& attributes);

}  // namespace attenuator::yoso
