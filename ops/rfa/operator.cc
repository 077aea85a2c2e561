// RfaAttention: checks and directions, then exact attention of the sequences without features over
// rows of length 1, then sums and rows of the others, as ops/common/features/sequences.h spreads
// them over threads.
#include <algorithm>
#include <cmath>

#include "operators.gen.h"
#include "ops/common/attention/tasks.h"
#include "ops/common/cpu.h"
#include "ops/common/features/inputs.h"
#include "ops/common/features/sequences.h"
#include "ops/common/registry.h"
#include "ops/rfa/cpu/kernel.h"

namespace attenuator {
namespace {

using Spec = spec::RfaAttention;
using features::BatchDirections;
using rfa::HeadShape;

// Trained factors beyond it count as it: angles would have no digits left.
constexpr double kInverseSigmaHigh = 1000.0;
// A denominator is at least so much for each key, where its exact value may be less.
constexpr double kLeastWeight = 1e-6;

// 1 / sigma of each head: the attribute's, times the trained factor where there is one.
std::vector<double> InverseSigmas(const TensorView& trained, const Spec::Attributes& attributes) {
  const std::int64_t heads = attributes.num_heads;
  std::vector<double> inverse(heads, 1.0 / static_cast<double>(attributes.sigma));
  if (!trained.present()) return inverse;
  CheckAxis(Spec::kName, "inverse_sigma", trained, 0, heads, "num_heads");
  for (std::int64_t h = 0; h < heads; ++h) {
    const double factor = trained.floats()[h];
    inverse[h] *= std::clamp(factor, -kInverseSigmaHigh, kInverseSigmaHigh);  // of NaN NaN
  }
  return inverse;
}

// How a head's part of one run is computed.
class Batch {
 public:
  Batch(const rfa::Kernels& kernels, const features::Inputs& inputs,
        const BatchDirections& directions, const std::vector<double>& inverse_sigma, float* output)
      : kernels_(kernels),
        in_(inputs),
        directions_(directions),
        inverse_sigma_(inverse_sigma),
        output_(output) {}

  std::int64_t StateFloats(std::int64_t b) const {
    return 2 * in_.num_features[b] * features::StateColumns(in_.value_dim);
  }
  std::int64_t RowWork(std::int64_t b) const {
    return 2 * in_.num_features[b] * (in_.head_dim + 2 * in_.value_dim);
  }

  void Summarise(std::int64_t b, std::int64_t h, std::int64_t begin, std::int64_t end,
                 float* state) const {
    const HeadShape shape = Shape(b, h);
    const AlignedArray<float> scratch = MakeAligned<float>(shape.scratch_floats());
    kernels_.summarise(shape, in_.Keys(b, h, begin), in_.Values(b, h, begin), end - begin, state,
                       scratch.get());
  }

  void Merge(std::int64_t b, float* state, const float* other) const {
    for (std::int64_t i = 0; i < StateFloats(b); ++i) state[i] += other[i];
  }

  void Apply(std::int64_t b, std::int64_t h, std::int64_t begin, std::int64_t end,
             const float* state) const {
    const HeadShape shape = Shape(b, h);
    const AlignedArray<float> scratch = MakeAligned<float>(shape.scratch_floats());
    kernels_.apply(shape, in_.Queries(b, h, begin), end - begin, state,
                   in_.Output(output_, b, h, begin), in_.value.columns(), scratch.get());
  }

 private:
  HeadShape Shape(std::int64_t b, std::int64_t h) const {
    constexpr double kQuarters = 0.63661977236758134;  // 2 / pi
    const features::Directions& directions = directions_.Of(b, h);
    const double inverse = inverse_sigma_[h];
    const double weight = std::max(std::exp(-2 * inverse * inverse), kLeastWeight);
    const double most = static_cast<double>(in_.num_features[b] * in_.sequences.length(b));
    return {.head_dim = in_.head_dim,
            .value_dim = in_.value_dim,
            .num_features = in_.num_features[b],
            .directions = directions.data.get(),
            .pitch = directions.pitch,
            .factor = kQuarters * inverse,
            .least = static_cast<float>(weight * most)};
  }

  const rfa::Kernels& kernels_;
  const features::Inputs& in_;
  const BatchDirections& directions_;
  const std::vector<double>& inverse_sigma_;
  float* output_;
};

// Queries and keys of the sequences that are computed exactly, as rows of length 1.
class UnitRows {
 public:
  UnitRows(ThreadPool& threads, const rfa::Kernels& kernels, const features::Inputs& inputs,
           std::int64_t heads)
      : in_(inputs), heads_(heads), begin_(inputs.sequences.batch) {
    std::int64_t floats = 0;
    for (std::int64_t b = 0; b < inputs.sequences.batch; ++b) {
      begin_[b] = floats;
      if (inputs.exact(b)) floats += heads * inputs.head_dim * (Queries(b) + Keys(b));
    }
    rows_ = MakeAligned<float>(floats);
    threads.For(inputs.sequences.batch * heads, [&](std::int64_t task) {
      const std::int64_t b = task / heads, h = task % heads;
      if (!inputs.exact(b)) return;
      float* query = rows_.get() + Place(b, h);
      kernels.unit_rows(inputs.Queries(b, h), Queries(b), inputs.head_dim, 1.0, query);
      kernels.unit_rows(inputs.Keys(b, h), Keys(b), inputs.head_dim, 1.0,
                        query + Queries(b) * inputs.head_dim);
    });
  }

  attention::Head Head(std::int64_t b, std::int64_t h) const {
    attention::Head head = in_.Head(b, h);
    head.query = rows_.get() + Place(b, h);
    head.key = head.query + Queries(b) * in_.head_dim;
    head.query_stride = head.key_stride = in_.head_dim;
    return head;
  }

 private:
  std::int64_t Keys(std::int64_t b) const { return in_.sequences.length(b); }
  std::int64_t Queries(std::int64_t b) const { return in_.first ? 1 : Keys(b); }
  std::int64_t Place(std::int64_t b, std::int64_t h) const {
    return begin_[b] + h * in_.head_dim * (Queries(b) + Keys(b));
  }

  const features::Inputs& in_;
  std::int64_t heads_;
  std::vector<std::int64_t> begin_;
  AlignedArray<float> rows_;
};

class RfaAttentionKernel final : public Kernel {
 public:
  explicit RfaAttentionKernel(const NodeReader& reader)
      : attributes_(Spec::Read(reader)),
        kernels_(CpuIsa() >= Isa::kAvx512 ? rfa::KernelsAvx512() : rfa::KernelsAvx2()) {
    CheckRange(Spec::kName, "sigma", attributes_.sigma, Spec::kSigmaLow, Spec::kSigmaHigh);
  }

  void Run(RunContext& context) const override {
    const auto inputs = features::CheckInputs<Spec>(context, attributes_);
    const std::vector<double> inverse_sigma =
        InverseSigmas(context.Input(Spec::kInverseSigmaInput), attributes_);
    const std::int64_t heads = attributes_.num_heads;
    float* const output = attention::PackedOutput<Spec>(context, inputs);
    ThreadPool& threads = context.threads();
    const UnitRows rows(threads, kernels_, inputs, heads);
    attention::AttendSequences(
        threads, inputs, heads, [&](std::int64_t b) { return inputs.exact(b); },
        [&](std::int64_t b, std::int64_t h) {
          attention::Head head = rows.Head(b, h);
          head.scale = static_cast<float>(inverse_sigma[h] * inverse_sigma[h]);
          return head;
        },
        output);
    const BatchDirections directions(threads, inputs, heads,
                                     {.seed = 0,
                                      .layer = static_cast<std::uint32_t>(attributes_.layer),
                                      .stream = Stream::kRfaDirections,
                                      .head_dim = static_cast<int>(inputs.head_dim),
                                      .orthogonal = false});
    const Batch batch(kernels_, inputs, directions, inverse_sigma, output);
    features::SequenceRunner(batch, inputs.sequences, heads, inputs.first)
        .Run(threads, [&](std::int64_t b) { return inputs.approximate(b); });
  }

 private:
  Spec::Attributes attributes_;
  const rfa::Kernels& kernels_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> MakeKernel<Spec>(const NodeReader& reader) {
  return std::make_unique<RfaAttentionKernel>(reader);
}

}  // namespace attenuator
