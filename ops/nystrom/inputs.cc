#include "ops/nystrom/inputs.h"

#include <string>

namespace attenuator::nystrom {

using Spec = spec::NystromAttention;

void CheckAttributes(const Spec::Attributes& attributes) {
  CheckFinite(Spec::kName, "scale", attributes.scale);
}

Inputs CheckInputs(const TensorContext& context, const Spec::Attributes& attributes) {
  Inputs inputs{};
  inputs.query = context.Input(Spec::kQueryInput);
  inputs.key = context.Input(Spec::kKeyInput);
  inputs.value = context.Input(Spec::kValueInput);
  inputs.conv_weight = context.Input(Spec::kConvWeightInput);
  const std::int64_t rows = inputs.key.rows(), heads = attributes.num_heads;
  inputs.sequences = CheckSequences(Spec::kName, context.Input(Spec::kCuSeqlensInput), rows);
  const std::int64_t batch = inputs.sequences.batch;
  CheckQuery(Spec::kName, inputs.query, inputs.key, batch, false);
  CheckAxis(Spec::kName, "value", inputs.value, 0, rows, "the number of rows of key");
  inputs.head_dim = CheckHeadDim(Spec::kName, "key", inputs.key, heads);
  inputs.value_dim = CheckHeadDim(Spec::kName, "value", inputs.value, heads);
  inputs.scale = attention::ScoreScale(attributes.scale, inputs.head_dim);
  inputs.num_landmarks =
      CheckKnob(Spec::kName, Spec::kNumLandmarks, context.Input(Spec::kNumLandmarksInput), batch);
  if (inputs.conv_weight.present()) {
    CheckAxis(Spec::kName, "conv_weight", inputs.conv_weight, 0, heads, "num_heads");
    if (inputs.conv_weight.columns() % 2 == 0) {
      Fail(Spec::kName, "conv_weight has " + std::to_string(inputs.conv_weight.columns()) +
                            " taps (columns), must have an odd number of them");
    }
  }
  return inputs;
}

}  // namespace attenuator::nystrom
