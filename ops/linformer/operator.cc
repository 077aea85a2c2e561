// LinformerAttention: checks, the projections of each head's keys and values, then exact attention
// over the projected rows.
//
// A short sequence is one task for some of its heads. Of a long one, slices of the projections'
// rows are tasks, and then slices of the queries. Neither changes a bit.
#include <algorithm>
#include <string>
#include <vector>

#include "ops/common/aligned.h"
#include "ops/common/attention/inputs.h"
#include "ops/common/check.h"
#include "ops/common/cpu.h"
#include "ops/common/registry.h"
#include "ops/common/tasks.h"
#include "ops/linformer/cpu/kernel.h"

namespace attenuator {
namespace {

using Spec = spec::LinformerAttention;
using linformer::HeadShape;
using linformer::Projections;

// Tokens from which a sequence is several tasks a head, and its queries in one of them.
constexpr std::int64_t kChunk = 16 * attention::kQueryBlock;
// Rows of the projections in one task of a long sequence.
constexpr std::int64_t kProjectedRows = 64;

struct Inputs : attention::PackedInputs {
  TensorView key_projection;    // [H * k, N]
  TensorView value_projection;  // [H * k, N]: the same where the node has one
  std::int64_t projected;       // k

  HeadShape shape() const { return {.head_dim = head_dim, .value_dim = value_dim}; }
};

void CheckProjections(Inputs& inputs, std::int64_t heads) {
  const TensorView& projection = inputs.key_projection;
  if (projection.rows() == 0 || projection.rows() % heads != 0) {
    Fail(Spec::kName,
         "key_projection has " + std::to_string(projection.rows()) +
             " rows, must have a positive multiple of num_heads = " + std::to_string(heads));
  }
  inputs.projected = projection.rows() / heads;
  for (int axis = 0; axis < 2; ++axis) {
    CheckAxis(Spec::kName, "value_projection", inputs.value_projection, axis,
              projection.shape[axis], "as key_projection");
  }
  for (std::int64_t b = 0; b < inputs.sequences.batch; ++b) {
    if (inputs.sequences.length(b) <= projection.columns()) continue;
    Fail(Spec::kName, "sequence " + std::to_string(b) + " has " +
                          std::to_string(inputs.sequences.length(b)) +
                          " tokens, must have at most " + std::to_string(projection.columns()) +
                          ", the columns of key_projection");
  }
}

Inputs CheckInputs(const TensorContext& context, const Spec::Attributes& attributes) {
  Inputs inputs{attention::CheckPackedInputs<Spec>(context, attributes), {}, {}, 0};
  inputs.key_projection = context.Input(Spec::kKeyProjectionInput);
  const TensorView own = context.Input(Spec::kValueProjectionInput);
  inputs.value_projection = own.present() ? own : inputs.key_projection;
  CheckProjections(inputs, attributes.num_heads);
  return inputs;
}

// One run: its inputs, its output, and how a head's part of it is computed.
class Batch {
 public:
  Batch(linformer::Project project, const Inputs& inputs, float* output)
      : project_(project), in_(inputs), shape_(inputs.shape()), output_(output) {}

  // All rows of some heads.
  void Short(std::int64_t b, std::int64_t begin, std::int64_t end) const {
    const AlignedArray<float> projected = MakeAligned<float>(head_floats());
    for (std::int64_t h = begin; h < end; ++h) {
      ProjectSlice(b, h, 0, in_.projected, projected.get());
      Attend(b, h, 0, in_.sequences.length(b), projected.get());
    }
  }

  void Long(ThreadPool& threads, std::int64_t b, std::int64_t heads) const {
    const AlignedArray<float> projected = MakeAligned<float>(heads * head_floats());
    const std::int64_t slices = (in_.projected + kProjectedRows - 1) / kProjectedRows;
    threads.For(heads * slices, [&](std::int64_t task) {
      const std::int64_t h = task / slices, row = task % slices * kProjectedRows;
      ProjectSlice(b, h, row, std::min(row + kProjectedRows, in_.projected),
                   projected.get() + h * head_floats());
    });
    const std::int64_t length = in_.sequences.length(b);
    const std::int64_t parts = in_.first ? 1 : (length + kChunk - 1) / kChunk;
    threads.For(heads * parts, [&](std::int64_t task) {
      const std::int64_t h = task / parts, row = task % parts * kChunk;
      Attend(b, h, row, std::min(row + kChunk, length), projected.get() + h * head_floats());
    });
  }

 private:
  std::int64_t head_floats() const { return in_.projected * shape_.columns(); }

  // Projected rows [begin, end) of head h, whose first one is `projected`.
  void ProjectSlice(std::int64_t b, std::int64_t h, std::int64_t begin, std::int64_t end,
                    float* projected) const {
    const AlignedArray<float> scratch = MakeAligned<float>(shape_.scratch_floats());
    const std::int64_t stride = in_.key_projection.columns();
    const std::int64_t first = (h * in_.projected + begin) * stride;
    project_(shape_,
             {.key = in_.key_projection.floats() + first,
              .value = in_.value_projection.floats() + first,
              .stride = stride,
              .rows = end - begin},
             in_.Keys(b, h), in_.Values(b, h), in_.sequences.length(b),
             projected + begin * shape_.columns(), scratch.get());
  }

  // Output rows [begin, end) of head h; row 0 alone where only first rows are computed.
  void Attend(std::int64_t b, std::int64_t h, std::int64_t begin, std::int64_t end,
              const float* projected) const {
    attention::Head head = in_.Head(b, h);
    head.key = projected;
    head.value = projected + shape_.value_column();
    head.key_stride = head.value_stride = shape_.columns();
    head.length = in_.projected;
    float* const to = in_.Output(output_, b, h, begin);
    if (in_.first) {
      attention::AttendFirstRow(head, to);
    } else {
      attention::AttendRows(head, begin, end, to, in_.value.columns());
    }
  }

  linformer::Project project_;
  const Inputs& in_;
  HeadShape shape_;
  float* output_;
};

class LinformerAttentionKernel final : public Kernel {
 public:
  explicit LinformerAttentionKernel(const NodeReader& reader)
      : attributes_(Spec::Read(reader)),
        project_(CpuIsa() >= Isa::kAvx512 ? linformer::ProjectAvx512() : linformer::ProjectAvx2()) {
    CheckFinite(Spec::kName, "scale", attributes_.scale);
  }

  void Run(RunContext& context) const override {
    const Inputs inputs = CheckInputs(context, attributes_);
    const std::int64_t heads = attributes_.num_heads;
    const Batch batch(project_, inputs, attention::PackedOutput<Spec>(context, inputs));
    std::vector<HeadTask> tasks;
    for (std::int64_t b = 0; b < inputs.sequences.batch; ++b) {
      const std::int64_t length = inputs.sequences.length(b);
      if (length == 0) continue;
      if (length > kChunk) {
        batch.Long(context.threads(), b, heads);
      } else {
        const std::int64_t work = 2 * length * inputs.projected * inputs.shape().columns();
        AddHeadTasks(b, heads, static_cast<double>(work), tasks);
      }
    }
    context.threads().For(static_cast<std::int64_t>(tasks.size()), [&](std::int64_t index) {
      const HeadTask& task = tasks[index];
      batch.Short(task.sequence, task.head_begin, task.head_end);
    });
  }

 private:
  Spec::Attributes attributes_;
  linformer::Project project_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> MakeKernel<Spec>(const NodeReader& reader) {
  return std::make_unique<LinformerAttentionKernel>(reader);
}

}  // namespace attenuator
