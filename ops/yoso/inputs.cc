#include "ops/yoso/inputs.h"

#include <string>

namespace attenuator::yoso {

using Spec = spec::YosoAttention;

Inputs CheckInputs(const TensorContext& context, const Spec::Attributes& attributes) {
  Inputs in{};
  in.query = context.Input(Spec::kQueryInput);
  in.key = context.Input(Spec::kKeyInput);
  in.value = context.Input(Spec::kValueInput);
  in.conv_weight = context.Input(Spec::kConvWeightInput);
  in.first = attributes.queries == Spec::Queries::kFirst;
  const std::int64_t heads = attributes.num_heads;
  in.sequences = CheckSequences(Spec::kName, context.Input(Spec::kCuSeqlensInput), in.key.rows());
  in.head_dim = CheckHeadDim(Spec::kName, "query", in.query, heads);
  in.value_dim = CheckHeadDim(Spec::kName, "value", in.value, heads);
  CheckAxis(Spec::kName, "key", in.key, 1, in.query.columns(), "as query has");
  CheckAxis(Spec::kName, "value", in.value, 0, in.key.rows(), "as key has");
  if (in.first) {
    CheckAxis(Spec::kName, "query", in.query, 0, in.sequences.batch,
              "one a sequence, since queries is 'first'");
  } else {
    CheckAxis(Spec::kName, "query", in.query, 0, in.key.rows(), "as key has");
  }
  in.num_hashes = CheckKnob(Spec::kName, Spec::kNumHashes, context.Input(Spec::kNumHashesInput),
                            in.sequences.batch);
  in.seeds = CheckSeeds(Spec::kName, context.Input(Spec::kSeedInput), in.sequences.batch);
  if (in.conv_weight.present()) {
    CheckAxis(Spec::kName, "conv_weight", in.conv_weight, 0, heads, "num_heads");
    if (in.conv_weight.columns() % 2 == 0) {
      Fail(Spec::kName,
           "conv_weight has " + std::to_string(in.conv_weight.columns()) + " taps, must be odd");
    }
  }
  return in;
}

}  // namespace attenuator::yoso
