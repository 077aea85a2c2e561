// Query, key and value of a packed batch, checked: what operators that attend over whole sequences
// have in common. Further inputs are the operators' own.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/common/attention/attention.h"
#include "ops/common/check.h"
#include "ops/common/context.h"
#include "ops/common/rows.h"

namespace attenuator::attention {

struct PackedInputs {
  TensorView query;  // [T, H * D]; [B, H * D] where `first`
  TensorView key;    // [T, H * D]
  TensorView value;  // [T, H * Dv]
  Sequences sequences;
  std::int64_t head_dim;   // D
  std::int64_t value_dim;  // Dv
  float scale;  // factor on the scores, the default replaced; 1 of operators without that attribute
  bool first;   // row b of query is the first row of sequence b

  // The first row of sequence b in query and output, and how many rows of it are there.
  std::int64_t query_row(std::int64_t b) const { return first ? b : sequences.begin(b); }
  std::int64_t query_rows(std::int64_t b) const {
    return first ? std::min<std::int64_t>(sequences.length(b), 1) : sequences.length(b);
  }
  // Row `row` of sequence b, and those behind it, of head h.
  HeadRows Queries(std::int64_t b, std::int64_t h, std::int64_t row = 0) const {
    return Rows(query, head_dim, query_row(b) + row, h);
  }
  HeadRows Keys(std::int64_t b, std::int64_t h, std::int64_t row = 0) const {
    return Rows(key, head_dim, sequences.begin(b) + row, h);
  }
  HeadRows Values(std::int64_t b, std::int64_t h, std::int64_t row = 0) const {
    return Rows(value, value_dim, sequences.begin(b) + row, h);
  }
  // Where row `row` of sequence b goes, of head h.
  float* Output(float* output, std::int64_t b, std::int64_t h, std::int64_t row = 0) const {
    return output + (query_row(b) + row) * value.columns() + h * value_dim;
  }
  // Exact attention of a head over its sequence.
  attention::Head Head(std::int64_t b, std::int64_t h) const {
    const HeadRows queries = Queries(b, h), keys = Keys(b, h), values = Values(b, h);
    return {.query = queries.data,
            .query_stride = queries.stride,
            .key = keys.data,
            .key_stride = keys.stride,
            .value = values.data,
            .value_stride = values.stride,
            .length = sequences.length(b),
            .head_dim = head_dim,
            .value_dim = value_dim,
            .scale = scale};
  }

 private:
  static HeadRows Rows(const TensorView& view, std::int64_t dim, std::int64_t row, std::int64_t h) {
    return {view.floats() + row * view.columns() + h * dim, view.columns()};
  }
};

// Of an operator without the attribute `queries`, all rows; throws std::invalid_argument where an
// input is wrong or does not fit the others.
template <class Spec>
PackedInputs CheckPackedInputs(const TensorContext& context,
                               const typename Spec::Attributes& attributes) {
  PackedInputs inputs{};
  inputs.query = context.Input(Spec::kQueryInput);
  inputs.key = context.Input(Spec::kKeyInput);
  inputs.value = context.Input(Spec::kValueInput);
  if constexpr (requires { attributes.queries; }) {
    inputs.first = attributes.queries == Spec::Queries::kFirst;
  }
  const std::int64_t rows = inputs.key.rows(), heads = attributes.num_heads;
  inputs.sequences = CheckSequences(Spec::kName, context.Input(Spec::kCuSeqlensInput), rows);
  CheckQuery(Spec::kName, inputs.query, inputs.key, inputs.sequences.batch, inputs.first);
  CheckAxis(Spec::kName, "value", inputs.value, 0, rows, "the number of rows of key");
  inputs.head_dim = CheckHeadDim(Spec::kName, "key", inputs.key, heads);
  inputs.value_dim = CheckHeadDim(Spec::kName, "value", inputs.value, heads);
  inputs.scale = 1.0f;
  if constexpr (requires { attributes.scale; }) {
    inputs.scale = ScoreScale(attributes.scale, inputs.head_dim);
  }
  return inputs;
}

// The operator's output, a row for each row of query; the row of an empty sequence is 0.
template <class Spec>
float* PackedOutput(RunContext& context, const PackedInputs& inputs) {
  const std::int64_t columns = inputs.value.columns();
  float* output =
      static_cast<float*>(context.Output(Spec::kOutputOutput, {inputs.query.rows(), columns}));
  for (std::int64_t b = 0; inputs.first && b < inputs.sequences.batch; ++b) {
    if (inputs.sequences.length(b) == 0) std::fill_n(output + b * columns, columns, 0.0f);
  }
  return output;
}

}  // namespace attenuator::attention
