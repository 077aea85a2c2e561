// BlendRows, for tests: the mean of the rows within reach, blended with the row itself.
#include <algorithm>

#include "ops/common/check.h"
#include "ops/common/registry.h"

namespace attenuator {
namespace {

using Spec = spec::BlendRows;

class BlendRowsKernel final : public Kernel {
 public:
  explicit BlendRowsKernel(const NodeReader&) {}

  void Run(RunContext& context) const override {
    const TensorView value = context.Input(Spec::kValueInput);
    const std::int64_t columns = value.columns();
    const Sequences sequences =
        CheckSequences(Spec::kName, context.Input(Spec::kCuSeqlensInput), value.rows());
    const std::int32_t* reach =
        CheckKnob(Spec::kName, Spec::kReach, context.Input(Spec::kReachInput), sequences.batch);
    const KnobValues<float> alpha = CheckOptionalKnob(
        Spec::kName, Spec::kAlpha, context.Input(Spec::kAlphaInput), sequences.batch);
    float* output =
        static_cast<float*>(context.Output(Spec::kOutputOutput, {value.rows(), columns}));
    context.threads().For(sequences.batch, [&](std::int64_t b) {
      const std::int64_t begin = sequences.begin(b), end = begin + sequences.length(b);
      const std::int64_t side = reach[b] == 0 ? sequences.length(b) : reach[b];
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t low = std::max(begin, i - side), high = std::min(end, i + side + 1);
        for (std::int64_t c = 0; c < columns; ++c) {
          double sum = 0;
          for (std::int64_t j = low; j < high; ++j) sum += value.floats()[j * columns + c];
          const double share = alpha[b], own = value.floats()[i * columns + c];
          output[i * columns + c] = static_cast<float>(
              (1 - share) * (sum / static_cast<double>(high - low)) + share * own);
        }
      }
    });
  }
};

}  // namespace

template <>
std::unique_ptr<Kernel> MakeKernel<Spec>(const NodeReader& reader) {
  return std::make_unique<BlendRowsKernel>(reader);
}

}  // namespace attenuator
