// LinearAttention: checks, then the keys' and values' sums of each head, then the rows, as
// ops/common/features/sequences.h spreads them over threads.
#include "ops/common/aligned.h"
#include "ops/common/attention/inputs.h"
#include "ops/common/cpu.h"
#include "ops/common/features/sequences.h"
#include "ops/common/registry.h"
#include "ops/linear/cpu/kernel.h"

namespace attenuator {
namespace {

using Spec = spec::LinearAttention;
using attention::PackedInputs;
using linear::HeadShape;

// One run: its inputs, its output, and how a head's part of it is computed.
class Batch {
 public:
  Batch(const linear::Kernels& kernels, const PackedInputs& inputs, float* output)
      : kernels_(kernels),
        in_(inputs),
        shape_{.head_dim = inputs.head_dim, .value_dim = inputs.value_dim},
        output_(output) {}

  std::int64_t StateFloats(std::int64_t) const { return shape_.state_floats(); }
  std::int64_t RowWork(std::int64_t) const { return 2 * shape_.state_floats(); }

  void Summarise(std::int64_t b, std::int64_t h, std::int64_t begin, std::int64_t end,
                 float* state) const {
    const AlignedArray<float> scratch = MakeAligned<float>(shape_.scratch_floats());
    kernels_.summarise(shape_, in_.Keys(b, h, begin), in_.Values(b, h, begin), end - begin, state,
                       scratch.get());
  }

  void Merge(std::int64_t, float* state, const float* other) const {
    for (std::int64_t i = 0; i < shape_.state_floats(); ++i) state[i] += other[i];
  }

  void Apply(std::int64_t b, std::int64_t h, std::int64_t begin, std::int64_t end,
             const float* state) const {
    const AlignedArray<float> scratch = MakeAligned<float>(shape_.scratch_floats());
    kernels_.apply(shape_, in_.Queries(b, h, begin), end - begin, state,
                   in_.Output(output_, b, h, begin), in_.value.columns(), scratch.get());
  }

 private:
  const linear::Kernels& kernels_;
  const PackedInputs& in_;
  HeadShape shape_;
  float* output_;
};

class LinearAttentionKernel final : public Kernel {
 public:
  explicit LinearAttentionKernel(const NodeReader& reader)
      : attributes_(Spec::Read(reader)),
        kernels_(CpuIsa() >= Isa::kAvx512 ? linear::KernelsAvx512() : linear::KernelsAvx2()) {}

  void Run(RunContext& context) const override {
    const PackedInputs inputs = attention::CheckPackedInputs<Spec>(context, attributes_);
    const Sequences& sequences = inputs.sequences;
    const Batch batch(kernels_, inputs, attention::PackedOutput<Spec>(context, inputs));
    features::SequenceRunner(batch, sequences, attributes_.num_heads, inputs.first)
        .Run(context.threads(), [&](std::int64_t b) { return sequences.length(b) > 0; });
  }

 private:
  Spec::Attributes attributes_;
  const linear::Kernels& kernels_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> MakeKernel<Spec>(const NodeReader& reader) {
  return std::make_unique<LinearAttentionKernel>(reader);
}

}  // namespace attenuator
