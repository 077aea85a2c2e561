// The inputs of one run of McaAttention, checked: the same for the CPU and the CUDA operator.
#pragma once

#include <cstdint>

#include "operators.gen.h"
#include "ops/common/check.h"
#include "ops/common/context.h"

namespace attenuator::mca {

struct Inputs {
  TensorView query;   // [T, H * D]; [B, H * D] where `first`
  TensorView key;     // [T, H * D]
  TensorView hidden;  // [T, C]
  TensorView weight;  // [C, H * D]
  TensorView bias;    // [H * D]
  Sequences sequences;
  TensorView positions;      // [T], perhaps absent
  Sequences unmerged;        // before rows were merged; those of `sequences` where none was
  const float* alpha;        // [B]
  const std::int64_t* seed;  // [B]
  std::int64_t head_dim;     // D
  bool first;                // row b of query is the first row of sequence b

  std::int64_t channels() const { return hidden.columns(); }
  std::int64_t width() const { return key.columns(); }
};

// Throws std::invalid_argument where an attribute is wrong in itself.
void CheckAttributes(const spec::McaAttention::Attributes& attributes);

// Throws std::invalid_argument where an input is wrong or does not fit the others.
Inputs CheckInputs(const TensorContext& context, const spec::McaAttention::Attributes& attributes);

}  // namespace attenuator::mca
