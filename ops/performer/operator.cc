// PerformerAttention: checks and directions, then exact attention of the sequences without
// features, then sums and rows of the others, as ops/common/features/sequences.h spreads them over
// threads.
#include <cmath>

#include "operators.gen.h"
#include "ops/common/attention/tasks.h"
#include "ops/common/cpu.h"
#include "ops/common/features/inputs.h"
#include "ops/common/features/sequences.h"
#include "ops/common/registry.h"
#include "ops/performer/cpu/kernel.h"

namespace attenuator {
namespace {

using Spec = spec::PerformerAttention;
using features::BatchDirections;
using performer::HeadShape;

// How a head's part of one run is computed.
class Batch {
 public:
  Batch(const performer::Kernels& kernels, const features::Inputs& inputs,
        const BatchDirections& directions, float* output)
      : kernels_(kernels), in_(inputs), directions_(directions), output_(output) {}

  std::int64_t StateFloats(std::int64_t b) const { return Sizes(b).state_floats(); }
  std::int64_t RowWork(std::int64_t b) const {
    return 2 * in_.num_features[b] * (in_.head_dim + in_.value_dim);
  }

  void Summarise(std::int64_t b, std::int64_t h, std::int64_t begin, std::int64_t end,
                 float* state) const {
    const HeadShape shape = Shape(b, h);
    const AlignedArray<float> scratch = MakeAligned<float>(shape.scratch_floats());
    kernels_.summarise(shape, in_.Keys(b, h, begin), in_.Values(b, h, begin), end - begin, state,
                       scratch.get());
  }

  void Merge(std::int64_t b, float* state, const float* other) const {
    kernels_.merge(Sizes(b), state, other);
  }

  void Apply(std::int64_t b, std::int64_t h, std::int64_t begin, std::int64_t end,
             const float* state) const {
    const HeadShape shape = Shape(b, h);
    const AlignedArray<float> scratch = MakeAligned<float>(shape.scratch_floats());
    kernels_.apply(shape, in_.Queries(b, h, begin), end - begin, state,
                   in_.Output(output_, b, h, begin), in_.value.columns(), scratch.get());
  }

 private:
  HeadShape Sizes(std::int64_t b) const {
    const float root = std::sqrt(std::fabs(in_.scale));
    return {.head_dim = in_.head_dim,
            .value_dim = in_.value_dim,
            .num_features = in_.num_features[b],
            .directions = nullptr,
            .pitch = 0,
            .query_factor = std::copysign(root, in_.scale),
            .key_factor = root};
  }

  HeadShape Shape(std::int64_t b, std::int64_t h) const {
    HeadShape shape = Sizes(b);
    const features::Directions& directions = directions_.Of(b, h);
    shape.directions = directions.data.get();
    shape.pitch = directions.pitch;
    return shape;
  }

  const performer::Kernels& kernels_;
  const features::Inputs& in_;
  const BatchDirections& directions_;
  float* output_;
};

class PerformerAttentionKernel final : public Kernel {
 public:
  explicit PerformerAttentionKernel(const NodeReader& reader)
      : attributes_(Spec::Read(reader)),
        kernels_(CpuIsa() >= Isa::kAvx512 ? performer::KernelsAvx512() : performer::KernelsAvx2()) {
    CheckFinite(Spec::kName, "scale", attributes_.scale);
  }

  void Run(RunContext& context) const override {
    const auto inputs = features::CheckInputs<Spec>(context, attributes_);
    const std::int64_t heads = attributes_.num_heads;
    float* const output = attention::PackedOutput<Spec>(context, inputs);
    ThreadPool& threads = context.threads();
    attention::AttendSequences(
        threads, inputs, heads, [&](std::int64_t b) { return inputs.exact(b); },
        [&](std::int64_t b, std::int64_t h) { return inputs.Head(b, h); }, output);
    const BatchDirections directions(threads, inputs, heads,
                                     {.seed = 0,
                                      .layer = static_cast<std::uint32_t>(attributes_.layer),
                                      .stream = Stream::kPerformerDirections,
                                      .head_dim = static_cast<int>(inputs.head_dim),
                                      .orthogonal = true});
    const Batch batch(kernels_, inputs, directions, output);
    features::SequenceRunner(batch, inputs.sequences, heads, inputs.first)
        .Run(threads, [&](std::int64_t b) { return inputs.approximate(b); });
  }

 private:
  Spec::Attributes attributes_;
  const performer::Kernels& kernels_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> MakeKernel<Spec>(const NodeReader& reader) {
  return std::make_unique<PerformerAttentionKernel>(reader);
}

}  // namespace attenuator
