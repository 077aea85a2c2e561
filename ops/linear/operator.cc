// LinearAttention: checks, then the keys' and values' sums of each head, then the rows.
//
// A short sequence is one task for some of its heads. A long one is summed up in chunks of a fixed
// size, counted from its start, each by one task; the chunks' states are added in their order, and
// rows are spread over tasks. So no bit depends on the number of threads.
#include <algorithm>
#include <vector>

#include "ops/common/aligned.h"
#include "ops/common/check.h"
#include "ops/common/cpu.h"
#include "ops/common/registry.h"
#include "ops/linear/cpu/kernel.h"

namespace attenuator {
namespace {

using Spec = spec::LinearAttention;
using linear::HeadRows;
using linear::HeadShape;

// Rows of a chunk: its state costs as much memory as that of 80 rows of inputs at 64 by 64.
constexpr std::int64_t kChunk = 16 * linear::kBlock;
// Multiply-adds under which handing a task to another thread costs more than it wins.
constexpr std::int64_t kTaskWork = 2'000'000;

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
  Batch(const linear::Kernels& kernels, const Inputs& inputs, std::int64_t heads, float* output)
      : kernels_(kernels), in_(inputs), heads_(heads), output_(output) {}

  void Long(ThreadPool& threads, std::int64_t b) const {
    const std::int64_t length = in_.sequences.length(b);
    const std::int64_t chunks = (length + kChunk - 1) / kChunk;
    const std::int64_t floats = in_.shape.state_floats();
    const AlignedArray<float> states = MakeAligned<float>(heads_ * chunks * floats);
    threads.For(heads_ * chunks, [&](std::int64_t task) {
      const std::int64_t begin = task % chunks * kChunk, end = std::min(begin + kChunk, length);
      Summarise(b, task / chunks, begin, end, states.get() + task * floats);
    });
    threads.For(heads_, [&](std::int64_t h) {
      float* sum = states.get() + h * chunks * floats;
      for (std::int64_t chunk = 1; chunk < chunks; ++chunk) {
        for (std::int64_t i = 0; i < floats; ++i) sum[i] += sum[chunk * floats + i];
      }
    });
    const std::int64_t rows = in_.first ? 1 : length, parts = (rows + kChunk - 1) / kChunk;
    threads.For(heads_ * parts, [&](std::int64_t task) {
      const std::int64_t h = task / parts, begin = task % parts * kChunk;
      Apply(b, h, begin, std::min(begin + kChunk, rows), states.get() + h * chunks * floats);
    });
  }

  void Short(std::int64_t b, std::int64_t begin, std::int64_t end) const {
    const std::int64_t length = in_.sequences.length(b);
    const AlignedArray<float> state = MakeAligned<float>(in_.shape.state_floats());
    for (std::int64_t h = begin; h < end; ++h) {
      Summarise(b, h, 0, length, state.get());
      Apply(b, h, 0, in_.first ? 1 : length, state.get());
    }
  }

 private:
  void Summarise(std::int64_t b, std::int64_t h, std::int64_t begin, std::int64_t end,
                 float* state) const {
    const AlignedArray<float> scratch = MakeAligned<float>(in_.shape.scratch_floats());
    const std::int64_t row = in_.sequences.begin(b) + begin;
    kernels_.summarise(in_.shape, in_.Rows(in_.key, in_.shape.head_dim, row, h),
                       in_.Rows(in_.value, in_.shape.value_dim, row, h), end - begin, state,
                       scratch.get());
  }

  void Apply(std::int64_t b, std::int64_t h, std::int64_t begin, std::int64_t end,
             const float* state) const {
    const AlignedArray<float> scratch = MakeAligned<float>(in_.shape.scratch_floats());
    const std::int64_t row = (in_.first ? b : in_.sequences.begin(b)) + begin;
    const std::int64_t columns = in_.value.columns();
    kernels_.apply(in_.shape, in_.Rows(in_.query, in_.shape.head_dim, row, h), end - begin, state,
                   output_ + row * columns + h * in_.shape.value_dim, columns, scratch.get());
  }

  const linear::Kernels& kernels_;
  const Inputs& in_;
  std::int64_t heads_;
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
    const Batch batch(kernels_, inputs, heads, output);
    struct Task {
      std::int64_t sequence, head_begin, head_end;
    };
    std::vector<Task> tasks;
    for (std::int64_t b = 0; b < inputs.sequences.batch; ++b) {
      const std::int64_t length = inputs.sequences.length(b);
      if (length == 0) {
        if (inputs.first) std::fill_n(output + b * columns, columns, 0.0f);
      } else if (length > kChunk) {
        batch.Long(context.threads(), b);
      } else {
        const std::int64_t work = 2 * length * inputs.shape.state_floats();
        const std::int64_t together = std::clamp<std::int64_t>(kTaskWork / work, 1, heads);
        for (std::int64_t h = 0; h < heads; h += together) {
          tasks.push_back({b, h, std::min(h + together, heads)});
        }
      }
    }
    context.threads().For(static_cast<std::int64_t>(tasks.size()), [&](std::int64_t index) {
      const Task& task = tasks[index];
      batch.Short(task.sequence, task.head_begin, task.head_end);
    });
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
