// The inputs of one run of TokenSelect, checked: the same for the CPU and the CUDA operator.
#pragma once

#include "operators.gen.h"
#include "ops/common/check.h"
#include "ops/common/context.h"

namespace attenuator::select {

struct Inputs {
  TensorView rows;        // [T, C]
  TensorView importance;  // [T]
  Sequences sequences;
  Sequences kept;  // as many sequences; of each that has rows at least one, and at most all of them
};

// Throws std::invalid_argument where an input is wrong or does not fit the others.
Inputs CheckInputs(const TensorContext& context);

}  // namespace attenuator::select
