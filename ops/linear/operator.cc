// LinearAttention: checks, then the keys' and values' sums of each head, then the rows, as
// ops/common/features/sequences.h spreads them over threads.
#include <algorithm>

#include "ops/common/aligned.h"
#include "ops/common/check.h"
#include "ops/common/cpu.h"
#include "ops/common/features/sequences.h"
#include "ops/common/registry.h"
#include "ops/linear/cpu/kernel.h"

namespace attenuator {
namespace {

using Spec = spec::LinearAttention;
using features::HeadRows;
using linear::HeadShape;

struct Inputs {
  TensorView query;  // [T, H * D]; [B, H * D] where `first`
  TensorView key;    // [T, H * D]
  TensorView value;  // [T, H * Dv]
  Sequences sequences;
  HeadShape shape;
  bool first;  // row b of query stands at the first position of sequence b

  // Rows `begin` and those behind it of head h.
  HeadRows Rows(const TensorView& view, std::int64_t dim, std::int64_t begin,
                std::int64_t h) const {
    return {view.floats() + begin * view.columns() + h * dim, view.columns()};
  }
};

Inputs CheckInputs(const TensorContext& context, const Spec::Attributes& attributes) {
  Inputs inputs{};
  inputs.query = context.Input(Spec::kQueryInput);
  inputs.key = context.Input(Spec::kKeyInput);
  inputs.value = context.Input(Spec::kValueInput);
  inputs.first = attributes.queries == Spec::Queries::kFirst;
  const std::int64_t rows = inputs.key.rows(), heads = attributes.num_heads;
  inputs.sequences = CheckSequences(Spec::kName, context.Input(Spec::kCuSeqlensInput), rows);
  CheckQuery(Spec::kName, inputs.query, inputs.key, inputs.sequences.batch, inputs.first);
  CheckAxis(Spec::kName, "value", inputs.value, 0, rows, "the number of rows of key");
  inputs.shape = {.head_dim = CheckHeadDim(Spec::kName, "key", inputs.key, heads),
                  .value_dim = CheckHeadDim(Spec::kName, "value", inputs.value, heads)};
  return inputs;
}

// One run: its inputs, its output, and how a head's part of it is computed.
class Batch {
 public:
  Batch(const linear::Kernels& kernels, const Inputs& inputs, float* output)
      : kernels_(kernels), in_(inputs), output_(output) {}

  std::int64_t StateFloats(std::int64_t) const { return in_.shape.state_floats(); }
  std::int64_t RowWork(std::int64_t) const { return 2 * in_.shape.state_floats(); }

  void Summarise(std::int64_t b, std::int64_t h, std::int64_t begin, std::int64_t end,
                 float* state) const {
    const AlignedArray<float> scratch = MakeAligned<float>(in_.shape.scratch_floats());
    const std::int64_t row = in_.sequences.begin(b) + begin;
    kernels_.summarise(in_.shape, in_.Rows(in_.key, in_.shape.head_dim, row, h),
                       in_.Rows(in_.value, in_.shape.value_dim, row, h), end - begin, state,
                       scratch.get());
  }

  void Merge(std::int64_t, float* state, const float* other) const {
    for (std::int64_t i = 0; i < in_.shape.state_floats(); ++i) state[i] += other[i];
  }

  void Apply(std::int64_t b, std::int64_t h, std::int64_t begin, std::int64_t end,
             const float* state) const {
    const AlignedArray<float> scratch = MakeAligned<float>(in_.shape.scratch_floats());
    const std::int64_t row = (in_.first ? b : in_.sequences.begin(b)) + begin;
    const std::int64_t columns = in_.value.columns();
    kernels_.apply(in_.shape, in_.Rows(in_.query, in_.shape.head_dim, row, h), end - begin, state,
                   output_ + row * columns + h * in_.shape.value_dim, columns, scratch.get());
  }

 private:
  const linear::Kernels& kernels_;
  const Inputs& in_;
  float* output_;
};

class LinearAttentionKernel final : public Kernel {
 public:
  explicit LinearAttentionKernel(const NodeReader& reader)
      : attributes_(Spec::Read(reader)),
        kernels_(CpuIsa() >= Isa::kAvx512 ? linear::KernelsAvx512() : linear::KernelsAvx2()) {}

  void Run(RunContext& context) const override {
    const Inputs inputs = CheckInputs(context, attributes_);
    const std::int64_t heads = attributes_.num_heads, columns = inputs.value.columns();
    float* output =
        static_cast<float*>(context.Output(Spec::kOutputOutput, {inputs.query.rows(), columns}));
    const Sequences& sequences = inputs.sequences;
    for (std::int64_t b = 0; inputs.first && b < sequences.batch; ++b) {
      if (sequences.length(b) == 0) std::fill_n(output + b * columns, columns, 0.0f);
    }
    const Batch batch(kernels_, inputs, output);
    features::SequenceRunner(batch, sequences, heads, inputs.first)
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
