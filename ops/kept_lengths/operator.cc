// KeptLengths: how many rows of each sequence a selection keeps, from the lengths and the knob.
//
// Runs on the CPU in every session (a host operator): both inputs and the output are in host
// memory, a few numbers a sequence. The power is taken in float64, in which it is the same on every
// machine but for the last place, and a share's rounding to float32 is taken off, lest it add a
// row. Where the rows that are not kept become one, that row is counted too.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kept_lengths_rule.gen.h"
#include "ops/common/check.h"
#include "ops/common/registry.h"

namespace attenuator::kept_lengths {
namespace {

using Spec = spec::KeptLengths;

std::int32_t KeptRows(std::int64_t rows, float keep, const Spec::Attributes& attributes) {
  if (rows == 0 || keep == Spec::kKeep.exact) return static_cast<std::int32_t>(rows);
  const double share =
      std::pow(static_cast<double>(keep), static_cast<double>(attributes.exponent));
  const double kept = std::ceil(static_cast<double>(rows) * share * kBelowOne);
  const std::int64_t merged = attributes.merge == Spec::Merge::kMean ? 1 : 0;
  return static_cast<std::int32_t>(
      std::min(std::max<std::int64_t>(1, static_cast<std::int64_t>(kept)) + merged, rows));
}

class KeptLengthsKernel final : public Kernel {
 public:
  explicit KeptLengthsKernel(const NodeReader& reader) : attributes_(Spec::Read(reader)) {
    CheckRange(Spec::kName, "exponent", attributes_.exponent, 0.0f, 1.0f);
  }

  void Run(RunContext& context) const override {
    const Sequences sequences =
        CheckOffsets(Spec::kName, "cu_seqlens", context.Input(Spec::kCuSeqlensInput));
    const float* keep =
        CheckKnob(Spec::kName, Spec::kKeep, context.Input(Spec::kKeepInput), sequences.batch);
    auto* kept = static_cast<std::int32_t*>(
        context.Output(Spec::kKeptCuSeqlensOutput, {sequences.batch + 1}));
    kept[0] = 0;
    for (std::int64_t b = 0; b < sequences.batch; ++b) {
      kept[b + 1] = kept[b] + KeptRows(sequences.length(b), keep[b], attributes_);
    }
  }

 private:
  Spec::Attributes attributes_;
};

}  // namespace
}  // namespace attenuator::kept_lengths

namespace attenuator {

template <>
std::unique_ptr<Kernel> MakeKernel<spec::KeptLengths>(const NodeReader& reader) {
  return std::make_unique<kept_lengths::KeptLengthsKernel>(reader);
}

}  // namespace attenuator
