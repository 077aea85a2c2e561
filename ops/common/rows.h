// Rows of floats inside larger tensors, and their lengths in whole registers.
#pragma once

#include <cstdint>

namespace attenuator {

inline constexpr std::int64_t kWidestVector = 16;

// Columns rounded up to the widest register.
constexpr std::int64_t PaddedToVectors(std::int64_t columns) {
  return (columns + kWidestVector - 1) / kWidestVector * kWidestVector;
}

// Rows of one head inside a packed tensor: row i starts at data + i * stride.
struct HeadRows {
  const float* data;
  std::int64_t stride;

  HeadRows From(std::int64_t row) const { return {data + row * stride, stride}; }
};

}  // namespace attenuator
