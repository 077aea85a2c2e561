// SequencePool: the first row, or the mean, of each sequence of a packed batch.
//
// One task per sequence; each output row is summed in token order by one thread, so a sequence's
// result depends neither on the threads nor on its neighbours. Memory traffic is one read of the
// input and one write of [B, C]; the sum runs in float64, since a float32 sum over 65,536 tokens
// would lose five bits.
#include <algorithm>

#include "ops/common/aligned.h"
#include "ops/common/check.h"
#include "ops/common/registry.h"

namespace attenuator::pool {
namespace {

using Spec = spec::SequencePool;

class SequencePoolKernel final : public Kernel {
 public:
  explicit SequencePoolKernel(const NodeReader& reader) : attributes_(Spec::Read(reader)) {}

  void Run(RunContext& context) const override {
    const TensorView hidden = context.Input(Spec::kHiddenInput);
    const Sequences sequences =
        CheckSequences(Spec::kName, context.Input(Spec::kCuSeqlensInput), hidden.rows());
    const std::int64_t channels = hidden.columns();
    float* output =
        static_cast<float*>(context.Output(Spec::kOutputOutput, {sequences.batch, channels}));
    context.threads().For(sequences.batch, [&](std::int64_t b) {
      const std::int64_t length = sequences.length(b);
      const float* rows = hidden.floats() + sequences.begin(b) * channels;
      float* row = output + b * channels;
      if (length == 0) {
        std::fill_n(row, channels, 0.0f);
      } else if (attributes_.mode == Spec::Mode::kFirst) {
        std::copy_n(rows, channels, row);
      } else {
        Mean(rows, length, channels, row);
      }
    });
  }

 private:
  static void Mean(const float* rows, std::int64_t length, std::int64_t channels, float* row) {
    const AlignedArray<double> sums = MakeAligned<double>(channels);
    std::fill_n(sums.get(), channels, 0.0);
    for (std::int64_t i = 0; i < length; ++i) {
      for (std::int64_t c = 0; c < channels; ++c) sums[c] += rows[i * channels + c];
    }
    for (std::int64_t c = 0; c < channels; ++c) {
      row[c] = static_cast<float>(sums[c] / static_cast<double>(length));
    }
  }

  Spec::Attributes attributes_;
};

}  // namespace
}  // namespace attenuator::pool

namespace attenuator {

template <>
std::unique_ptr<Kernel> MakeKernel<spec::SequencePool>(const NodeReader& reader) {
  return std::make_unique<pool::SequencePoolKernel>(reader);
}

}  // namespace attenuator
