// Layer norms of one head of LongShortAttention on the CPU: all that ops/common/attention has not.
#pragma once

#include <cstdint>

#include "ops/common/rows.h"

namespace attenuator::longshort {

// A head's factors and terms, `columns` each.
struct Norm {
  const float* factor;
  const float* term;
  std::int64_t columns;
  float epsilon;
};

// The kernel of one instruction set: row i of `to`, whose rows lie `pitch` floats apart, is the
// layer norm of row i. Writes PaddedToVectors(norm.columns) floats a row, zeros behind the norm.
// `to` may be `rows.data` itself where strides are equal.
using Normalise = void (*)(const Norm& norm, HeadRows rows, std::int64_t count, float* to,
                           std::int64_t pitch);

Normalise NormaliseAvx2();
Normalise NormaliseAvx512();

}  // namespace attenuator::longshort
