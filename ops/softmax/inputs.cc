#include "ops/softmax/inputs.h"

#include "ops/common/attention/attention.h"

namespace attenuator::softmax {

using Spec = spec::SoftmaxAttention;

void CheckAttributes(const Spec::Attributes& attributes) {
  CheckFinite(Spec::kName, "scale", attributes.scale);
}

Inputs CheckInputs(const TensorContext& context, const Spec::Attributes& attributes) {
  Inputs inputs{};
  inputs.query = context.Input(Spec::kQueryInput);
  inputs.key = context.Input(Spec::kKeyInput);
  inputs.value = context.Input(Spec::kValueInput);
  inputs.first = attributes.queries == Spec::Queries::kFirst;
  const std::int64_t rows = inputs.key.rows();
  inputs.sequences = CheckSequences(Spec::kName, context.Input(Spec::kCuSeqlensInput), rows);
  CheckQuery(Spec::kName, inputs.query, inputs.key, inputs.sequences.batch, inputs.first);
  CheckAxis(Spec::kName, "value", inputs.value, 0, rows, "the number of rows of key");
  inputs.positions = context.Input(Spec::kPositionsInput);
  if (inputs.positions.present()) {
    CheckAxis(Spec::kName, "positions", inputs.positions, 0, rows, "the number of rows of key");
  }
  inputs.unmerged =
      CheckUnmerged(Spec::kName, context.Input(Spec::kUnmergedCuSeqlensInput), inputs.sequences);
  inputs.head_dim = CheckHeadDim(Spec::kName, "key", inputs.key, attributes.num_heads);
  inputs.value_dim = CheckHeadDim(Spec::kName, "value", inputs.value, attributes.num_heads);
  inputs.scale = attention::ScoreScale(attributes.scale, inputs.head_dim);
  return inputs;
}

}  // namespace attenuator::softmax
