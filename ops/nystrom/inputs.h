// The inputs of one run of NystromAttention, checked.
#pragma once

#include <cstdint>

#include "operators.gen.h"
#include "ops/common/attention/inputs.h"
#include "ops/common/check.h"
#include "ops/common/context.h"

namespace attenuator::nystrom {

struct Inputs : attention::PackedInputs {
  TensorView conv_weight;             // [H, taps], or absent
  const std::int32_t* num_landmarks;  // [B]

  // Landmarks of sequence b; 0 where it gets exact attention.
  std::int64_t Landmarks(std::int64_t b) const {
    return num_landmarks[b] < sequences.length(b) ? num_landmarks[b] : 0;
  }
};

// Throws std::invalid_argument where an attribute is wrong in itself.
void CheckAttributes(const spec::NystromAttention::Attributes& attributes);

// Throws std::invalid_argument where an input is wrong or does not fit the others.
Inputs CheckInputs(const TensorContext& context,
                   const spec::NystromAttention::Attributes& attributes);

}  // namespace attenuator::nystrom
