// NystromAttention on the CPU: checks, then the landmarks of each head, then rows.
//
// A head of a sequence leaves two small matrices behind: its keys' landmarks, and what the inverse
// makes of the values that the queries' landmarks gathered. Rows then attend to these as they would
// to keys and values, by the kernels of exact attention, and add the convolution. Sequences of no
// more tokens than landmarks have rows alone, over their own keys and values. A task owns heads of
// a sequence, or rows of such heads, and writes nothing else: no bit depends on threads.
//
// Where the divisor is of the whole sequence, landmarks' weights are computed twice, once for their
// column sums: keeping them would cost landmarks^2 floats a head of every sequence.
#include <algorithm>
#include <vector>

#include "ops/common/aligned.h"
#include "ops/common/attention/tasks.h"
#include "ops/common/cpu.h"
#include "ops/common/registry.h"
#include "ops/nystrom/cpu/kernel.h"
#include "ops/nystrom/inputs.h"

namespace attenuator::nystrom {
namespace {

using Spec = spec::NystromAttention;
using attention::RowTask;

// Rows of a long sequence in one task.
constexpr std::int64_t kTaskRows = 8 * attention::kQueryBlock;

// One run: its inputs and what heads leave behind.
class Batch {
 public:
  Batch(const Kernels& kernels, const Inputs& inputs, const Spec::Attributes& attributes)
      : kernels_(kernels),
        in_(inputs),
        heads_(attributes.num_heads),
        iterations_(attributes.iterations),
        shared_(attributes.divisor == Spec::Divisor::kSequence) {
    std::int64_t floats = 0;
    for (std::int64_t b = 0; b < in_.sequences.batch; ++b) {
      places_.push_back(floats);
      floats += heads_ * HeadFloats(in_.Landmarks(b));
    }
    state_ = MakeAligned<float>(floats);
    divisors_.resize(shared_ ? in_.sequences.batch * heads_ : 0);
  }

  void Run(ThreadPool& threads, float* output) {
    const std::vector<RowTask> heads = HeadTasks();
    const auto for_heads = [&](const auto& body) {
      threads.For(static_cast<std::int64_t>(heads.size()), [&](std::int64_t index) {
        const RowTask& task = heads[index];
        for (std::int64_t h = task.head_begin; h < task.head_end; ++h) body(task.sequence, h);
      });
    };
    if (shared_) {
      for_heads([&](std::int64_t b, std::int64_t h) { divisors_[b * heads_ + h] = Divisor(b, h); });
    }
    for_heads([&](std::int64_t b, std::int64_t h) { Gather(b, h); });
    const std::vector<RowTask> rows = TasksOfRows();
    threads.For(static_cast<std::int64_t>(rows.size()), [&](std::int64_t index) {
      const RowTask& task = rows[index];
      for (std::int64_t h = task.head_begin; h < task.head_end; ++h) Spread(task, h, output);
    });
  }

 private:
  std::int64_t HeadFloats(std::int64_t landmarks) const {
    return landmarks * (PaddedToVectors(in_.head_dim) + PaddedToVectors(in_.value_dim));
  }
  float* KeyMeans(std::int64_t b, std::int64_t h) const {
    return state_.get() + places_[b] + h * HeadFloats(in_.Landmarks(b));
  }
  float* Mixed(std::int64_t b, std::int64_t h) const {
    return KeyMeans(b, h) + MatrixFloats(in_.Landmarks(b), in_.head_dim);
  }

  // The weights of the keys' landmarks for the queries', [landmarks, landmarks]: attention over the
  // rows of the unit matrix.
  void Core(std::int64_t b, std::int64_t h, float* query_means, float* unit, float* core) const {
    const std::int64_t l = in_.Landmarks(b), length = in_.sequences.length(b), dim = in_.head_dim;
    kernels_.means(in_.Queries(b, h), length, dim, l, query_means);
    kernels_.means(in_.Keys(b, h), length, dim, l, KeyMeans(b, h));
    std::fill_n(unit, MatrixFloats(l, l), 0.0f);
    std::fill_n(core, MatrixFloats(l, l), 0.0f);
    for (std::int64_t i = 0; i < l; ++i) unit[i * PaddedToVectors(l) + i] = 1.0f;
    attention::Head head = OverLandmarks(b, h, unit, l);
    head.query = query_means;
    head.query_stride = PaddedToVectors(dim);
    attention::AttendRows(head, 0, l, core, PaddedToVectors(l));
  }

  // Attention of the sequence's queries over the keys' landmarks, and over `values` of theirs.
  attention::Head OverLandmarks(std::int64_t b, std::int64_t h, const float* values,
                                std::int64_t value_dim) const {
    attention::Head head = in_.Head(b, h);
    head.key = KeyMeans(b, h);
    head.key_stride = PaddedToVectors(in_.head_dim);
    head.value = values;
    head.value_stride = PaddedToVectors(value_dim);
    head.value_dim = value_dim;
    head.length = in_.Landmarks(b);
    return head;
  }

  float Divisor(std::int64_t b, std::int64_t h) const {
    const std::int64_t l = in_.Landmarks(b), square = MatrixFloats(l, l);
    const AlignedArray<float> scratch = MakeAligned<float>(2 * square + HeadFloats(l));
    float* const core = scratch.get() + square;
    Core(b, h, core + square, scratch.get(), core);
    return kernels_.largest_column_sum(core, l);
  }

  // Leaves the keys' landmarks of a head, and the inverse times the values that the queries'
  // landmarks gather.
  void Gather(std::int64_t b, std::int64_t h) const {
    const std::int64_t l = in_.Landmarks(b), square = MatrixFloats(l, l);
    const AlignedArray<float> memory =
        MakeAligned<float>((1 + kInverseMatrices) * square + HeadFloats(l));
    float *const core = memory.get(), *const scratch = core + square;
    float* const query_means = scratch + kInverseMatrices * square;
    float* const gathered = query_means + MatrixFloats(l, in_.head_dim);
    Core(b, h, query_means, scratch, core);
    const float divisor =
        shared_ ? *std::max_element(&divisors_[b * heads_], &divisors_[b * heads_] + heads_)
                : kernels_.largest_column_sum(core, l);
    const float* inverse = kernels_.inverse(core, l, divisor, iterations_, scratch);
    attention::Head head = in_.Head(b, h);
    head.query = query_means;
    head.query_stride = PaddedToVectors(in_.head_dim);
    std::fill_n(gathered, MatrixFloats(l, in_.value_dim), 0.0f);
    attention::AttendRows(head, 0, l, gathered, PaddedToVectors(in_.value_dim));
    kernels_.multiply(inverse, l, gathered, in_.value_dim, Mixed(b, h));
  }

  // Rows of a head: from its landmarks, or from its own keys and values; and the convolution.
  void Spread(const RowTask& task, std::int64_t h, float* output) const {
    const std::int64_t b = task.sequence, columns = in_.value.columns();
    float* const to = in_.Output(output, b, h, task.row_begin);
    const attention::Head head =
        in_.Landmarks(b) == 0 ? in_.Head(b, h) : OverLandmarks(b, h, Mixed(b, h), in_.value_dim);
    attention::AttendRows(head, task.row_begin, task.row_end, to, columns);
    if (!in_.conv_weight.present()) return;
    const std::int64_t taps = in_.conv_weight.columns();
    kernels_.convolve(in_.Values(b, h), in_.sequences.length(b), in_.value_dim,
                      in_.conv_weight.floats() + h * taps, taps, task.row_begin,
                      task.row_end - task.row_begin, to, columns);
  }

  // Heads of short sequences share a task.
  void AddTasks(std::int64_t b, std::int64_t work, std::int64_t begin, std::int64_t end,
                std::vector<RowTask>& tasks) const {
    const std::int64_t together = HeadsTogether(static_cast<double>(work), heads_);
    for (std::int64_t h = 0; h < heads_; h += together) {
      tasks.push_back({b, h, std::min(h + together, heads_), begin, end});
    }
  }

  std::vector<RowTask> HeadTasks() const {
    std::vector<RowTask> tasks;
    for (std::int64_t b = 0; b < in_.sequences.batch; ++b) {
      const std::int64_t l = in_.Landmarks(b);
      if (l == 0) continue;
      const std::int64_t gathering = l * in_.sequences.length(b) * (in_.head_dim + in_.value_dim);
      AddTasks(b, gathering + 4 * iterations_ * l * l * l, 0, 0, tasks);
    }
    return tasks;
  }

  std::vector<RowTask> TasksOfRows() const {
    std::vector<RowTask> tasks;
    for (std::int64_t b = 0; b < in_.sequences.batch; ++b) {
      const std::int64_t length = in_.sequences.length(b), l = in_.Landmarks(b);
      const std::int64_t keys = l == 0 ? length : l;
      for (std::int64_t row = 0; row < length; row += kTaskRows) {
        const std::int64_t end = std::min(row + kTaskRows, length);
        const std::int64_t width =
            keys * (in_.head_dim + in_.value_dim) + in_.conv_weight.columns() * in_.value_dim;
        AddTasks(b, (end - row) * width, row, end, tasks);
      }
    }
    return tasks;
  }

  const Kernels& kernels_;
  const Inputs& in_;
  std::int64_t heads_;
  std::int64_t iterations_;
  bool shared_;
  AlignedArray<float> state_;
  std::vector<std::int64_t> places_;
  std::vector<float> divisors_;
};

class NystromAttentionKernel final : public Kernel {
 public:
  explicit NystromAttentionKernel(const NodeReader& reader)
      : attributes_(Spec::Read(reader)),
        kernels_(CpuIsa() >= Isa::kAvx512 ? KernelsAvx512() : KernelsAvx2()) {
    CheckAttributes(attributes_);
  }

  void Run(RunContext& context) const override {
    const Inputs inputs = CheckInputs(context, attributes_);
    float* const output = attention::PackedOutput<Spec>(context, inputs);
    Batch(kernels_, inputs, attributes_).Run(context.threads(), output);
  }

 private:
  Spec::Attributes attributes_;
  const Kernels& kernels_;
};

}  // namespace
}  // namespace attenuator::nystrom

namespace attenuator {

template <>
std::unique_ptr<Kernel> MakeKernel<spec::NystromAttention>(const NodeReader& reader) {
  return std::make_unique<nystrom::NystromAttentionKernel>(reader);
}

}  // namespace attenuator
