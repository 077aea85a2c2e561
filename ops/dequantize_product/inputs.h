// A product and its scales, checked, for the operators that have them.
#pragma once

#include "ops/common/check.h"
#include "ops/common/context.h"
#include "ops/dequantize_product/cpu/kernel.h"

namespace attenuator::dequantize_product {

// Without residual and norm. Throws std::invalid_argument where an input does not fit the others.
template <class Spec>
Product CheckProduct(const TensorContext& context) {
  const TensorView sums = context.Input(Spec::kSumsInput);
  const TensorView row_scale = context.Input(Spec::kRowScaleInput);
  const TensorView channel_scale = context.Input(Spec::kChannelScaleInput);
  const TensorView bias = context.Input(Spec::kBiasInput);
  CheckAxis(Spec::kName, "row_scale", row_scale, 0, sums.rows(), "rows of sums");
  CheckAxis(Spec::kName, "channel_scale", channel_scale, 0, sums.columns(), "columns of sums");
  if (bias.present()) CheckAxis(Spec::kName, "bias", bias, 0, sums.columns(), "columns of sums");
  return {.sums = sums.int32s(),
          .row_scale = row_scale.floats(),
          .channel_scale = channel_scale.floats(),
          .bias = bias.floats(),
          .residual = nullptr,
          .norm_weight = nullptr,
          .norm_bias = nullptr,
          .epsilon = 0,
          .rows = sums.rows(),
          .columns = sums.columns()};
}

}  // namespace attenuator::dequantize_product
