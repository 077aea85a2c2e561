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
  // Lengths before rows were merged; those of `sequences` where rows that are not kept are dropped.
  Sequences unmerged;
  bool merges;  // rows that are not kept become one more, their mean

  // Whether the last kept row of a sequence is the mean of others.
  bool Merges(std::int64_t b) const { return merges && kept.length(b) < sequences.length(b); }
  // Whether the last row of a sequence is already the mean of some: it is merged again, never kept.
  bool has_mean(std::int64_t b) const { return unmerged.length(b) > sequences.length(b); }
};

// Throws std::invalid_argument where an input is wrong or does not fit the others.
Inputs CheckInputs(const TensorContext& context);

}  // namespace attenuator::select
