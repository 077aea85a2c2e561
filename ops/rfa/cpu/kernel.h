// One head of RfaAttention on the CPU: what the keys and values of some rows add up to, and what
// queries make of that. The state of a head has a row for the sine of each direction, then one for
// each cosine (ops/common/features/cpu/state.h).
#pragma once

#include <cstdint>

#include "ops/common/features/cpu/state.h"

namespace attenuator::rfa {

using features::kBlock;
using features::Pitch;
using features::StateColumns;

// Rows shorter than this count as if it were their length.
inline constexpr double kNormFloor = 1e-12;

struct HeadShape {
  std::int64_t head_dim;
  std::int64_t value_dim;
  std::int64_t num_features;
  const float* directions;  // [head_dim][pitch], num_features or more of them
  std::int64_t pitch;
  double factor;  // on unit rows: their products with directions are in quarters of a turn
  float least;    // of a denominator

  std::int64_t columns() const { return StateColumns(value_dim); }
  std::int64_t state_floats() const { return 2 * num_features * columns(); }
  // Sines and cosines of a block, its unit rows, its values or what comes of them.
  std::int64_t scratch_floats() const {
    return kBlock * (2 * Pitch(num_features) + head_dim + columns());
  }
};

// The kernels of one instruction set. `scratch` holds scratch_floats(); it and `state` are 64-byte
// aligned.
struct Kernels {
  // output row i = row i * (factor / its length), rows of head_dim floats.
  void (*unit_rows)(HeadRows rows, std::int64_t count, std::int64_t head_dim, double factor,
                    float* output);
  // state = the sum over `count` rows, in their order.
  void (*summarise)(const HeadShape& shape, HeadRows key, HeadRows value, std::int64_t count,
                    float* state, float* scratch);
  // output row i = numerators of query i / its denominator.
  void (*apply)(const HeadShape& shape, HeadRows query, std::int64_t count, const float* state,
                float* output, std::int64_t output_stride, float* scratch);
};

const Kernels& KernelsAvx2();
const Kernels& KernelsAvx512();

}  // namespace attenuator::rfa
