#include "ops/nystrom/inputs.h"

#include <string>

namespace attenuator::nystrom {

using Spec = spec::NystromAttention;

void CheckAttributes(const Spec::Attributes& attributes) {
  CheckFinite(Spec::kName, "scale", attributes.scale);
}

Inputs CheckInputs(const TensorContext& context, const Spec::Attributes& attributes) {
  Inputs inputs{};
  static_cast<attention::PackedInputs&>(inputs) =
      attention::CheckPackedInputs<Spec>(context, attributes);
  const std::int64_t batch = inputs.sequences.batch, heads = attributes.num_heads;
  inputs.conv_weight = context.Input(Spec::kConvWeightInput);
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
