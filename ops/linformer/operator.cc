// LinformerAttention: checks, the projections of each head's keys and values, then exact attention
// over the projected rows.
//
// A short sequence is one task for some of its heads. Of a long one, slices of the projections'
// rows are tasks, and then slices of the queries. Neither changes a bit.
#include <algorithm>
#include <string>
#include <vector>

#include "ops/common/aligned.h"
#include "ops/common/attention/attention.h"
#include "ops/common/check.h"
#include "ops/common/cpu.h"
#include "ops/common/registry.h"
#include "ops/linformer/cpu/kernel.h"

namespace attenuator {
namespace {

using Spec = spec::LinformerAttention;
using linformer::HeadRows;
using linformer::HeadShape;
using linformer::Projections;

// Tokens from which a sequence is several tasks a head, and its queries in one of them.
constexpr std::int64_t kChunk = 16 * attention::kQueryBlock;
// Rows of the projections in one task of a long sequence.
constexpr std::int64_t kProjectedRows = 64;
// Multiply-adds under which handing a task to another thread costs more than it wins.
constexpr double kTaskWork = 2e6;

struct Inputs {
  TensorView query;             // [T, H * D]; [B, H * D] where `first`
  TensorView key;               // [T, H * D]
  TensorView value;             // [T, H * Dv]
  TensorView key_projection;    // [H * k, N]
  TensorView value_projection;  // [H * k, N]: the same where the node has one
  Sequences sequences;
  HeadShape shape;
  std::int64_t projected;  // k
  float scale;
  bool first;  // row b of query stands at the first position of sequence b

  // Rows `begin` and those behind it of head h.
  static HeadRows Rows(const TensorView& view, std::int64_t dim, std::int64_t begin,
                       std::int64_t h) {
    return {view.floats() + begin * view.columns() + h * dim, view.columns()};
  }
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
  inputs.scale = attention::ScoreScale(attributes.scale, inputs.shape.head_dim);
  inputs.key_projection = context.Input(Spec::kKeyProjectionInput);
  const TensorView own = context.Input(Spec::kValueProjectionInput);
  inputs.value_projection = own.present() ? own : inputs.key_projection;
  CheckProjections(inputs, heads);
  return inputs;
}

// One run: its inputs, its output, and how a head's part of it is computed.
class Batch {
 public:
  Batch(linformer::Project project, const Inputs& inputs, float* output)
      : project_(project), in_(inputs), output_(output) {}

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
  std::int64_t head_floats() const { return in_.projected * in_.shape.columns(); }

  // Projected rows [begin, end) of head h, whose first one is `projected`.
  void ProjectSlice(std::int64_t b, std::int64_t h, std::int64_t begin, std::int64_t end,
                    float* projected) const {
    const AlignedArray<float> scratch = MakeAligned<float>(in_.shape.scratch_floats());
    const std::int64_t row = in_.sequences.begin(b), first = h * in_.projected + begin;
    const HeadRows key = Inputs::Rows(in_.key_projection, 0, first, 0);
    const HeadRows value = Inputs::Rows(in_.value_projection, 0, first, 0);
    project_(in_.shape, {key.data, value.data, key.stride, end - begin},
             Inputs::Rows(in_.key, in_.shape.head_dim, row, h),
             Inputs::Rows(in_.value, in_.shape.value_dim, row, h), in_.sequences.length(b),
             projected + begin * in_.shape.columns(), scratch.get());
  }

  // Output rows [begin, end) of head h; row 0 alone where only first rows are computed.
  void Attend(std::int64_t b, std::int64_t h, std::int64_t begin, std::int64_t end,
              const float* projected) const {
    const std::int64_t row = in_.first ? b : in_.sequences.begin(b), columns = in_.value.columns();
    const HeadRows query = Inputs::Rows(in_.query, in_.shape.head_dim, row, h);
    const attention::Head head{.query = query.data,
                               .query_stride = query.stride,
                               .key = projected,
                               .key_stride = in_.shape.columns(),
                               .value = projected + in_.shape.value_column(),
                               .value_stride = in_.shape.columns(),
                               .length = in_.projected,
                               .head_dim = in_.shape.head_dim,
                               .value_dim = in_.shape.value_dim,
                               .scale = in_.scale};
    float* const to = output_ + (row + begin) * columns + h * in_.shape.value_dim;
    if (in_.first) {
      attention::AttendFirstRow(head, to);
    } else {
      attention::AttendRows(head, begin, end, to, columns);
    }
  }

  linformer::Project project_;
  const Inputs& in_;
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
    const std::int64_t heads = attributes_.num_heads, columns = inputs.value.columns();
    float* output =
        static_cast<float*>(context.Output(Spec::kOutputOutput, {inputs.query.rows(), columns}));
    const Batch batch(project_, inputs, output);
    struct Task {
      std::int64_t sequence, head_begin, head_end;
    };
    std::vector<Task> tasks;
    for (std::int64_t b = 0; b < inputs.sequences.batch; ++b) {
      const std::int64_t length = inputs.sequences.length(b);
      if (length == 0) {
        if (inputs.first) std::fill_n(output + b * columns, columns, 0.0f);
      } else if (length > kChunk) {
        batch.Long(context.threads(), b, heads);
      } else {
        const double work =
            2.0 * static_cast<double>(length * inputs.projected * inputs.shape.columns());
        const auto together = static_cast<std::int64_t>(
            std::clamp(kTaskWork / work, 1.0, static_cast<double>(heads)));
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
  linformer::Project project_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> MakeKernel<Spec>(const NodeReader& reader) {
  return std::make_unique<LinformerAttentionKernel>(reader);
}

}  // namespace attenuator
