// One head of PerformerAttention on the CPU: what the keys and values of some rows add up to, and
// what queries make of that. The state of a head has a row for each feature
// (ops/common/features/cpu/state.h), and behind these the largest exponent of each feature.
#pragma once

#include <cstdint>

#include "ops/common/features/cpu/state.h"

namespace attenuator::performer {

using features::kBlock;
using features::Pitch;
using features::StateColumns;

struct HeadShape {
  std::int64_t head_dim;
  std::int64_t value_dim;
  std::int64_t num_features;
  const float* directions;  // [head_dim][pitch], num_features or more of them
  std::int64_t pitch;
  float query_factor;  // on queries and keys: their product is the scale
  float key_factor;

  std::int64_t columns() const { return StateColumns(value_dim); }
  std::int64_t state_floats() const {
    return num_features * columns() + PaddedToVectors(num_features);
  }
  // Features of a block, its scaled rows, its values or what comes of them, a number for each
  // feature and one for each row.
  std::int64_t scratch_floats() const {
    return kBlock * (Pitch(num_features) + head_dim + columns() + 1) +
           PaddedToVectors(num_features);
  }
};

// The kernels of one instruction set. `scratch` holds scratch_floats(); it and `state` are 64-byte
// aligned.
struct Kernels {
  // state = the sum over `count` rows, in their order.
  void (*summarise)(const HeadShape& shape, HeadRows key, HeadRows value, std::int64_t count,
                    float* state, float* scratch);
  // state becomes the sum over the rows of both.
  void (*merge)(const HeadShape& shape, float* state, const float* other);
  // output row i = numerators of query i / its denominator.
  void (*apply)(const HeadShape& shape, HeadRows query, std::int64_t count, const float* state,
                float* output, std::int64_t output_stride, float* scratch);
};

const Kernels& KernelsAvx2();
const Kernels& KernelsAvx512();

}  // namespace attenuator::performer
