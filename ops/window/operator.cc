// WindowAttention: checks, then exact attention (common/attention) by one task for each (sequence,
// heads, query rows), under the window that the sequence's knob leaves. At the trained window a row
// has the bits that SoftmaxAttention gives it under a window of that width, and a key its
// importance.
//
// Rows of a window are those whose places differ by at most its width: row numbers or, where rows
// were left out before, `positions`. The keys inside are then found once for each width that the
// batch has, 8 bytes a token.
#include <map>
#include <vector>

#include "operators.gen.h"
#include "ops/common/attention/importance.h"
#include "ops/common/attention/tasks.h"
#include "ops/common/check.h"
#include "ops/common/registry.h"
#include "ops/common/window.h"
#include "ops/window/importance.h"

namespace attenuator::window {
namespace {

using Spec = spec::WindowAttention;
using attention::KeyRange;
using attention::RowTask;

struct Inputs : attention::PackedInputs {
  std::vector<std::int64_t> windows;  // [B]
  TensorView positions;               // [T], perhaps absent
};

Inputs CheckInputs(const TensorContext& context, const Spec::Attributes& attributes) {
  Inputs inputs{attention::CheckPackedInputs<Spec>(context, attributes)};
  const std::int64_t batch = inputs.sequences.batch;
  const std::int32_t* const knob =
      CheckKnob(Spec::kName, Spec::kWindow, context.Input(Spec::kWindowInput), batch);
  for (std::int64_t b = 0; b < batch; ++b) {
    inputs.windows.push_back(NarrowedWindow(attributes.trained_window, knob[b]));
  }
  inputs.positions = context.Input(Spec::kPositionsInput);
  if (inputs.positions.present()) {
    CheckAxis(Spec::kName, "positions", inputs.positions, 0, inputs.key.rows(),
              "the number of rows of key");
  }
  attention::CheckPositions(Spec::kName, inputs.positions, inputs.sequences);
  return inputs;
}

class WindowAttentionKernel final : public Kernel {
 public:
  explicit WindowAttentionKernel(const NodeReader& reader) : attributes_(Spec::Read(reader)) {
    CheckFinite(Spec::kName, "scale", attributes_.scale);
  }

  void Run(RunContext& context) const override {
    const Inputs inputs = CheckInputs(context, attributes_);
    const Sequences& sequences = inputs.sequences;
    const std::int64_t heads = attributes_.num_heads;
    float* const output = attention::PackedOutput<Spec>(context, inputs);
    const bool first = inputs.first || attributes_.importance == Spec::Importance::kFirst;
    Importance importance(attention::ImportanceOutput<Spec>(context, attributes_, sequences.total),
                          first, sequences, heads);
    std::map<std::int64_t, std::vector<KeyRange>> ranges;
    for (const std::int64_t window : inputs.windows) {
      if (ranges.count(window) == 0) {
        ranges[window] = attention::RangesOf(inputs.positions, sequences, window);
      }
    }
    const auto head_of = [&](std::int64_t b, std::int64_t h) {
      attention::Head head = inputs.Head(b, h);
      head.window = inputs.windows[b];
      head.global_token = attributes_.global_tokens == 1;
      const std::vector<KeyRange>& inside = ranges.at(head.window);
      if (!inside.empty()) head.ranges = inside.data() + sequences.begin(b);
      return head;
    };
    std::vector<RowTask> tasks;
    for (std::int64_t b = 0; b < sequences.batch; ++b) {
      attention::AddRowTasks(head_of(b, 0), b, heads, inputs.query_rows(b),
                             attention::TaskRows(sequences.total * heads), tasks);
    }
    context.threads().For(static_cast<std::int64_t>(tasks.size()), [&](std::int64_t index) {
      const RowTask& task = tasks[index];
      for (std::int64_t h = task.head_begin; h < task.head_end; ++h) {
        const attention::Head head = head_of(task.sequence, h);
        float* const rows = inputs.Output(output, task.sequence, h, task.row_begin);
        if (inputs.first) {
          attention::AttendFirstRow(head, rows);
        } else {
          importance.AttendRows(head, task, h, rows, inputs.value.columns());
        }
      }
    });
    importance.Sum(context.threads(), head_of);
  }

 private:
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
