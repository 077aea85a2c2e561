// WindowAttention: checks, then exact attention (common/attention) by one task for each (sequence,
// heads, query rows), under the window that the sequence's knob leaves. At the trained window a row
// has the bits that SoftmaxAttention gives it under a window of that width.
#include <algorithm>
#include <vector>

#include "operators.gen.h"
#include "ops/common/attention/attention.h"
#include "ops/common/attention/tasks.h"
#include "ops/common/check.h"
#include "ops/common/registry.h"

namespace attenuator::window {
namespace {

using Spec = spec::WindowAttention;
using attention::Head;
using attention::RowTask;

struct Inputs {
  TensorView query;  // [T, H * D]; [B, H * D] where `first`
  TensorView key;    // [T, H * D]
  TensorView value;  // [T, H * Dv]
  Sequences sequences;
  const std::int32_t* windows;  // [B]
  Head head;                    // what all heads have in common
  bool first;                   // row b of query is the first row of sequence b
};

Inputs CheckInputs(const TensorContext& context, const Spec::Attributes& attributes) {
  Inputs inputs{};
  inputs.query = context.Input(Spec::kQueryInput);
  inputs.key = context.Input(Spec::kKeyInput);
  inputs.value = context.Input(Spec::kValueInput);
  inputs.first = attributes.queries == Spec::Queries::kFirst;
  const std::int64_t rows = inputs.key.rows(), heads = attributes.num_heads;
  inputs.sequences = CheckSequences(Spec::kName, context.Input(Spec::kCuSeqlensInput), rows);
  const std::int64_t batch = inputs.sequences.batch;
  CheckQuery(Spec::kName, inputs.query, inputs.key, batch, inputs.first);
  CheckAxis(Spec::kName, "value", inputs.value, 0, rows, "the number of rows of key");
  inputs.windows = CheckKnob(Spec::kName, Spec::kWindow, context.Input(Spec::kWindowInput), batch);
  const std::int64_t head_dim = CheckHeadDim(Spec::kName, "key", inputs.key, heads);
  inputs.head = {.query_stride = inputs.query.columns(),
                 .key_stride = inputs.key.columns(),
                 .value_stride = inputs.value.columns(),
                 .head_dim = head_dim,
                 .value_dim = CheckHeadDim(Spec::kName, "value", inputs.value, heads),
                 .scale = attention::ScoreScale(attributes.scale, head_dim),
                 .global_token = attributes.global_tokens == 1};
  return inputs;
}

class WindowAttentionKernel final : public Kernel {
 public:
  explicit WindowAttentionKernel(const NodeReader& reader) : attributes_(Spec::Read(reader)) {
    CheckFinite(Spec::kName, "scale", attributes_.scale);
  }

  void Run(RunContext& context) const override {
    const Inputs inputs = CheckInputs(context, attributes_);
    const std::int64_t columns = inputs.value.columns(), heads = attributes_.num_heads;
    float* output =
        static_cast<float*>(context.Output(Spec::kOutputOutput, {inputs.query.rows(), columns}));
    const std::int64_t task_rows = attention::TaskRows(inputs.sequences.total * heads);
    std::vector<RowTask> tasks;
    for (std::int64_t b = 0; b < inputs.sequences.batch; ++b) {
      const Head head = HeadOf(inputs, b, 0);
      if (head.length == 0 && inputs.first) std::fill_n(output + b * columns, columns, 0.0f);
      attention::AddRowTasks(head, b, heads, inputs.first ? 1 : head.length, task_rows, tasks);
    }
    context.threads().For(static_cast<std::int64_t>(tasks.size()), [&](std::int64_t index) {
      const RowTask& task = tasks[index];
      const std::int64_t b = task.sequence;
      const std::int64_t row = (inputs.first ? b : inputs.sequences.begin(b)) + task.row_begin;
      for (std::int64_t h = task.head_begin; h < task.head_end; ++h) {
        const Head head = HeadOf(inputs, b, h);
        float* rows = output + row * columns + h * head.value_dim;
        if (inputs.first) {
          attention::AttendFirstRow(head, rows);
        } else {
          attention::AttendRows(head, task.row_begin, task.row_end, rows, columns);
        }
      }
    });
  }

 private:
  Head HeadOf(const Inputs& inputs, std::int64_t b, std::int64_t h) const {
    const std::int64_t begin = inputs.sequences.begin(b), window = inputs.windows[b];
    Head head = inputs.head;
    head.length = inputs.sequences.length(b);
    head.query =
        inputs.query.floats() + (inputs.first ? b : begin) * head.query_stride + h * head.head_dim;
    head.key = inputs.key.floats() + begin * head.key_stride + h * head.head_dim;
    head.value = inputs.value.floats() + begin * head.value_stride + h * head.value_dim;
    head.window =
        window == 0 ? attributes_.trained_window : std::min(attributes_.trained_window, window);
    return head;
  }

  Spec::Attributes attributes_;
};

}  // namespace
}  // namespace attenuator::window

namespace attenuator {

template <>
std::unique_ptr<Kernel> MakeKernel<spec::WindowAttention>(const NodeReader& reader) {
  return std::make_unique<window::WindowAttentionKernel>(reader);
}

}  // namespace attenuator
