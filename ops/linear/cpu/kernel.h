// One head of LinearAttention on the CPU: what the keys and values of some rows add up to, and
// what queries make of that. The state of a head has a row for each of head_dim
// (ops/common/features/cpu/state.h).
#pragma once

#include <cstdint>

#include "ops/common/features/cpu/state.h"

namespace attenuator::linear {

using features::kBlock;
using features::StateColumns;

struct HeadShape {
  std::int64_t head_dim;
  std::int64_t value_dim;

  std::int64_t state_floats() const { return head_dim * StateColumns(value_dim); }
  // Features of a block and its values, or what comes of them.
  std::int64_t scratch_floats() const { return kBlock * (head_dim + StateColumns(value_dim)); }
};

// The kernels of one instruction set. `scratch` holds scratch_floats(); it and `state` are 64-byte
// aligned.
struct Kernels {
  // state = the sum over `count` rows, in their order.
  void (*summarise)(const HeadShape& shape, HeadRows key, HeadRows value, std::int64_t count,
                    float* state, float* scratch);
  // output row i = numerators of query i / its denominator; 0 where the denominator is 0.
  void (*apply)(const HeadShape& shape, HeadRows query, std::int64_t count, const float* state,
                float* output, std::int64_t output_stride, float* scratch);
};

const Kernels& KernelsAvx2();
const Kernels& KernelsAvx512();

}  // namespace attenuator::linear
