// The inputs of one run of RelativeAttention, checked: the same for the CPU and the CUDA operator.
#pragma once

#include <cstdint>

#include "operators.gen.h"
#include "ops/common/check.h"
#include "ops/common/context.h"

namespace attenuator::relative {

struct Inputs {
  TensorView query;  // [T, H * D]; [B, H * D] where `first`
  TensorView key;    // [T, H * D]
  TensorView value;  // [T, H * Dv]
  Sequences sequences;
  TensorView buckets;                   // [2 * reach + 1]
  TensorView pos_key, pos_query, bias;  // [R, H * D], [R, H * D], [R, H]
  TensorView positions;                 // [T]
  Sequences unmerged;                   // before rows were merged; or `sequences`
  std::int64_t table_rows;              // R; 0 without tables
  bool first;                           // row b of query stands at the first position of sequence b
  std::int64_t head_dim;                // D
  std::int64_t value_dim;               // Dv
  float scale;  // factor on the products; the default, 0, is replaced by 1 / sqrt(D)

  bool has_tables() const { return table_rows > 0; }
  std::int64_t reach() const { return buckets.rows() / 2; }
};

// Throws std::invalid_argument where an attribute is wrong in itself.
void CheckAttributes(const spec::RelativeAttention::Attributes& attributes);

// Throws std::invalid_argument where an input is wrong or does not fit the others. Values of
// buckets and positions are not looked at: they may be the device's.
Inputs CheckInputs(const TensorContext& context,
                   const spec::RelativeAttention::Attributes& attributes);

// Those values, in host memory: throws std::invalid_argument where a bucket is no row of the tables
// or positions do not ascend.
void CheckValues(const Inputs& inputs);

}  // namespace attenuator::relative
