// YosoAttention's inputs, checked: the same for every device.
#pragma once

#include <cstdint>
#include <utility>

#include "operators.gen.h"
#include "ops/common/check.h"

namespace attenuator::yoso {

// Element types and memory of query, key, value and conv_weight are the device's; the rest is in
// host memory.
struct Inputs {
  TensorView query, key, value, conv_weight;
  Sequences sequences;
  const std::int32_t* num_hashes;
  const std::int64_t* seeds;
  std::int64_t head_dim, value_dim;
  bool first;  // queries = first

  // The rows of sequence b in query and output: first row and number.
  std::pair<std::int64_t, std::int64_t> QueryRows(std::int64_t b) const {
    if (first) return {b, 1};
    return {sequences.begin(b), sequences.length(b)};
  }
};

// Throws std::invalid_argument where an input is wrong.
Inputs CheckInputs(const TensorContext& context, const spec::YosoAttention::Attributes& attributes);

}  // namespace attenuator::yoso
