// The inputs of one run of NystromAttention, checked.
#pragma once

#include <cstdint>

#include "operators.gen.h"
#include "ops/common/attention/attention.h"
#include "ops/common/check.h"
#include "ops/common/context.h"
#include "ops/nystrom/cpu/kernel.h"

namespace attenuator::nystrom {

struct Inputs {
  TensorView query;        // [T, H * D]
  TensorView key;          // [T, H * D]
  TensorView value;        // [T, H * Dv]
  TensorView conv_weight;  // [H, taps], or absent
  Sequences sequences;
  const std::int32_t* num_landmarks;  // [B]
  std::int64_t head_dim;              // D
  std::int64_t value_dim;             // Dv
  float scale;                        // factor on the scores; the default, 0, is replaced

  // Landmarks of sequence b; 0 where it gets exact attention.
  std::int64_t Landmarks(std::int64_t b) const {
    return num_landmarks[b] < sequences.length(b) ? num_landmarks[b] : 0;
  }
  // The rows of head h of sequence b.
  HeadRows Rows(const TensorView& view, std::int64_t dim, std::int64_t b, std::int64_t h) const {
    return {view.floats() + sequences.begin(b) * view.columns() + h * dim, view.columns()};
  }
  // Exact attention of that head.
  attention::Head Exact(std::int64_t b, std::int64_t h) const {
    const HeadRows q = Rows(query, head_dim, b, h), k = Rows(key, head_dim, b, h);
    const HeadRows v = Rows(value, value_dim, b, h);
    return {.query = q.data,
            .query_stride = q.stride,
            .key = k.data,
            .key_stride = k.stride,
            .value = v.data,
            .value_stride = v.stride,
            .length = sequences.length(b),
            .head_dim = head_dim,
            .value_dim = value_dim,
            .scale = scale};
  }
};

// Throws std::invalid_argument where an attribute is wrong in itself.
void CheckAttributes(const spec::NystromAttention::Attributes& attributes);

// Throws std::invalid_argument where an input is wrong or does not fit the others.
Inputs CheckInputs(const TensorContext& context,
                   const spec::NystromAttention::Attributes& attributes);

}  // namespace attenuator::nystrom
