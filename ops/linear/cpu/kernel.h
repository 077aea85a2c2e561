// One head of LinearAttention on the CPU: what the keys and values of some rows add up to, and
// what queries make of that.
//
// The state of a head is sum over rows j of phi(k_j) v'_j^T, [head_dim, StateColumns], where v'_j
// is the value with a 1 behind it: the last column in use is the sum of the features, so that one
// product gives a query's numerators and its denominator. Columns behind it are 0.
#pragma once

#include <cstdint>

namespace attenuator::linear {

// Rows that go through the kernel together: their features and values stay in the first cache.
inline constexpr std::int64_t kBlock = 64;

// Floats in a row of the state: value_dim + 1, rounded up to the widest register.
constexpr std::int64_t StateColumns(std::int64_t value_dim) { return (value_dim + 16) / 16 * 16; }

struct HeadShape {
  std::int64_t head_dim;
  std::int64_t value_dim;

  std::int64_t state_floats() const { return head_dim * StateColumns(value_dim); }
  // Features of a block and its values, or what comes of them.
  std::int64_t scratch_floats() const { return kBlock * (head_dim + StateColumns(value_dim)); }
};

// Rows of one head inside a packed tensor: row i starts at data + i * stride.
struct HeadRows {
  const float* data;
  std::int64_t stride;
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
