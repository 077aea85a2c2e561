#include "ops/mca/inputs.h"

namespace attenuator::mca {

using Spec = spec::McaAttention;

void CheckAttributes(const Spec::Attributes& attributes) {
  CheckFinite(Spec::kName, "scale", attributes.scale);
}

Inputs CheckInputs(const TensorContext& context, const Spec::Attributes& attributes) {
  Inputs inputs{};
  inputs.query = context.Input(Spec::kQueryInput);
  inputs.key = context.Input(Spec::kKeyInput);
  inputs.hidden = context.Input(Spec::kHiddenInput);
  inputs.weight = context.Input(Spec::kValueWeightInput);
  inputs.bias = context.Input(Spec::kValueBiasInput);
  inputs.first = attributes.queries == Spec::Queries::kFirst;
  const std::int64_t rows = inputs.key.rows(), columns = inputs.key.columns();
  inputs.sequences = CheckSequences(Spec::kName, context.Input(Spec::kCuSeqlensInput), rows);
  const std::int64_t batch = inputs.sequences.batch;
  CheckQuery(Spec::kName, inputs.query, inputs.key, batch, inputs.first);
  CheckAxis(Spec::kName, "hidden", inputs.hidden, 0, rows, "the number of rows of key");
  inputs.positions = context.Input(Spec::kPositionsInput);
  if (inputs.positions.present()) {
    CheckAxis(Spec::kName, "positions", inputs.positions, 0, rows, "the number of rows of key");
  }
  inputs.unmerged =
      CheckUnmerged(Spec::kName, context.Input(Spec::kUnmergedCuSeqlensInput), inputs.sequences);
  inputs.head_dim = CheckHeadDim(Spec::kName, "key", inputs.key, attributes.num_heads);
  if (inputs.channels() < 1) Fail(Spec::kName, "hidden has 0 columns, must have at least 1");
  CheckAxis(Spec::kName, "value_weight", inputs.weight, 0, inputs.channels(),
            "the number of columns of hidden");
  CheckAxis(Spec::kName, "value_weight", inputs.weight, 1, columns, "the number of columns of key");
  CheckAxis(Spec::kName, "value_bias", inputs.bias, 0, columns,
            "the number of columns of value_weight");
  inputs.alpha = CheckKnob(Spec::kName, Spec::kAlpha, context.Input(Spec::kAlphaInput), batch);
  inputs.seed = CheckSeeds(Spec::kName, context.Input(Spec::kSeedInput), batch);
  return inputs;
}

}  // namespace attenuator::mca
