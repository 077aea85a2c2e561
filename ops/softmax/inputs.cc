#include "ops/softmax/inputs.h"

#include <cmath>

namespace attenuator {
namespace {

using Spec = spec::SoftmaxAttention;

}  // namespace

void CheckSoftmaxAttributes(const Spec::Attributes& attributes) {
  if (!std::isfinite(attributes.scale)) Fail(Spec::kName, "attribute scale is not finite");
}

SoftmaxInputs CheckSoftmaxInputs(const TensorContext& context, const Spec::Attributes& attributes) {
  const TensorView query = context.Input(Spec::kQueryInput);
  const TensorView key = context.Input(Spec::kKeyInput);
  const TensorView value = context.Input(Spec::kValueInput);
  const bool first = attributes.queries == Spec::Queries::kFirst;
  const Sequences sequences =
      CheckSequences(Spec::kName, context.Input(Spec::kCuSeqlensInput), key.rows());
  CheckAxis(Spec::kName, "value", value, 0, key.rows(), "rows of key");
  CheckAxis(Spec::kName, "query", query, 0, first ? sequences.batch : key.rows(),
            first ? "one row a sequence" : "rows of key");
  CheckAxis(Spec::kName, "query", query, 1, key.columns(), "columns of key");
  const std::int64_t head_dim = CheckHeadDim(Spec::kName, "key", key, attributes.num_heads);
  const std::int64_t value_dim = CheckHeadDim(Spec::kName, "value", value, attributes.num_heads);
  return {query, key, value, sequences, head_dim, value_dim, ScoreScale(attributes.scale, head_dim),
          first};
}

float ScoreScale(float scale, std::int64_t head_dim) {
  if (scale != 0.0f) return scale;
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
}

}  // namespace attenuator
