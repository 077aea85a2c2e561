// What the sums of a product in integers stand for, on the CPU.
#pragma once

#include <cstdint>

#include "operators.gen.h"

namespace attenuator::dequantize_product {

using Activation = spec::DequantizeProduct::Activation;

// Rows side by side, T of them; null is what the node has not, both of the norm or none.
struct Product {
  const std::int32_t* sums;    // [T, columns]
  const float* row_scale;      // [T]
  const float* channel_scale;  // [columns]
  const float* bias;           // [columns]
  const float* residual;       // [T, columns]
  const float* norm_weight;    // [columns]
  const float* norm_bias;      // [columns]
  float epsilon;
  std::int64_t rows;
  std::int64_t columns;
};

// Writes rows [begin, end), the first of them at `output`.
using Kernel = void (*)(const Product& product, std::int64_t begin, std::int64_t end,
                        float* output);

Kernel KernelAvx2(Activation activation);
Kernel KernelAvx512(Activation activation);

}  // namespace attenuator::dequantize_product
