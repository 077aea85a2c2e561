// What NystromAttention computes on landmarks on the CPU; the rest is exact attention
// (ops/common/attention/), with landmarks in the place of queries or of keys.
//
// Matrices lie row after row, rows `PaddedToVectors(columns)` floats apart; what is behind a row's
// columns is 0.
#pragma once

#include <cstdint>

#include "ops/common/rows.h"

namespace attenuator::nystrom {

// Floats of a matrix [rows, columns].
constexpr std::int64_t MatrixFloats(std::int64_t rows, std::int64_t columns) {
  return rows * PaddedToVectors(columns);
}

// Matrices of landmarks by landmarks that `inverse` has as scratch.
inline constexpr std::int64_t kInverseMatrices = 4;

// The kernels of one instruction set. Matrices are 64-byte aligned.
struct Kernels {
  // means [landmarks, columns] of the segments of `tokens` rows, landmarks <= tokens.
  void (*means)(HeadRows rows, std::int64_t tokens, std::int64_t columns, std::int64_t landmarks,
                float* means);
  // The largest sum of a column of [size, size].
  float (*largest_column_sum)(const float* matrix, std::int64_t size);
  // An approximate pseudo-inverse of `matrix` [size, size] in one of the scratch matrices.
  const float* (*inverse)(const float* matrix, std::int64_t size, float divisor,
                          std::int64_t iterations, float* scratch);
  // product [size, columns] = left [size, size] * right [size, columns].
  void (*multiply)(const float* left, std::int64_t size, const float* right, std::int64_t columns,
                   float* product);
  // Adds to rows [first, first + rows) of the output the convolution of `count` values with `taps`
  // weights.
  void (*convolve)(HeadRows values, std::int64_t count, std::int64_t columns, const float* weights,
                   std::int64_t taps, std::int64_t first, std::int64_t rows, float* output,
                   std::int64_t stride);
};

const Kernels& KernelsAvx2();
const Kernels& KernelsAvx512();

}  // namespace attenuator::nystrom
