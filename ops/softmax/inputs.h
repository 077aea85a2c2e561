// The inputs of one run of SoftmaxAttention, checked: the same for the CPU and the CUDA operator.
#pragma once

#include <cstdint>

#include "operators.gen.h"
#include "ops/common/check.h"
#include "ops/common/context.h"

namespace attenuator::softmax {

struct Inputs {
  TensorView query;  // [T, H * D]; [B, H * D] where `first`
  TensorView key;    // [T, H * D]
  TensorView value;  // [T, H * Dv]
  Sequences sequences;
  TensorView positions;    // [T], perhaps absent
  Sequences unmerged;      // before rows were merged; those of `sequences` where none was
  std::int64_t head_dim;   // D
  std::int64_t value_dim;  // Dv
  float scale;             // factor on the scores; the default, 0, is replaced by 1 / sqrt(D)
  bool first;              // row b of query is the first row of sequence b
};

// Throws std::invalid_argument where an attribute is wrong in itself.
void CheckAttributes(const spec::SoftmaxAttention::Attributes& attributes);

// Throws std::invalid_argument where an input is wrong or does not fit the others.
Inputs CheckInputs(const TensorContext& context,
                   const spec::SoftmaxAttention::Attributes& attributes);

}  // namespace attenuator::softmax
