// SoftmaxAttention: checks, then one task for each (sequence, heads, query rows).
#include <algorithm>
#include <cstring>
#include <vector>

#include "ops/common/attention/attention.h"
#include "ops/common/registry.h"
#include "ops/softmax/inputs.h"

namespace attenuator {
namespace {

using Spec = spec::SoftmaxAttention;

// Rows that one task takes of a long sequence: the more, the more blocks share keys and values, as
// long as there are tasks for many threads. And the multiply-adds under which handing a task to
// another thread costs more than it wins.
constexpr std::int64_t kFewestTaskRows = 4 * kQueryBlock;
constexpr std::int64_t kMostTaskRows = 16 * kQueryBlock;
constexpr std::int64_t kManyTasks = 32;
constexpr double kTaskWork = 2e6;

std::int64_t TaskRows(std::int64_t rows) {
  const std::int64_t share = rows / kManyTasks / kQueryBlock * kQueryBlock;
  return std::clamp(share, kFewestTaskRows, kMostTaskRows);
}

struct Task {
  std::int64_t sequence;
  std::int64_t head_begin;
  std::int64_t head_end;
  std::int64_t row_begin;
  std::int64_t row_end;
};

class SoftmaxAttentionKernel final : public Kernel {
 public:
  explicit SoftmaxAttentionKernel(const NodeReader& reader) : attributes_(Spec::Read(reader)) {
    softmax::CheckAttributes(attributes_);
  }

  void Run(RunContext& context) const override {
    const softmax::Inputs inputs = softmax::CheckInputs(context, attributes_);
    const TensorView &query = inputs.query, &key = inputs.key, &value = inputs.value;
    const Sequences& sequences = inputs.sequences;
    const bool first = inputs.first;
    AttentionHead shared;
    shared.head_dim = inputs.head_dim;
    shared.value_dim = inputs.value_dim;
    shared.query_stride = query.columns();
    shared.key_stride = key.columns();
    shared.value_stride = value.columns();
    shared.scale = inputs.scale;
    shared.window = attributes_.window;
    shared.global_token = attributes_.global_tokens == 1;
    float* output =
        static_cast<float*>(context.Output(Spec::kOutputOutput, {query.rows(), value.columns()}));

    if (first) {
      for (std::int64_t b = 0; b < sequences.batch; ++b) {
        if (sequences.length(b) != 0) continue;
        std::memset(output + b * value.columns(), 0, sizeof(float) * value.columns());
      }
    }
    const std::vector<Task> tasks = Tasks(sequences, shared, first);
    context.threads().For(static_cast<std::int64_t>(tasks.size()), [&](std::int64_t index) {
      const Task& task = tasks[index];
      const std::int64_t begin = sequences.begin(task.sequence);
      const std::int64_t query_begin = first ? task.sequence : begin;
      for (std::int64_t h = task.head_begin; h < task.head_end; ++h) {
        AttentionHead head = shared;
        head.length = sequences.length(task.sequence);
        head.query = query.floats() + query_begin * query.columns() + h * head.head_dim;
        head.key = key.floats() + begin * key.columns() + h * head.head_dim;
        head.value = value.floats() + begin * value.columns() + h * head.value_dim;
        float* rows =
            output + (query_begin + task.row_begin) * value.columns() + h * head.value_dim;
        if (first) {
          FirstRowAttention(head, rows);
        } else {
          ExactAttention(head, task.row_begin, task.row_end, rows, value.columns());
        }
      }
    });
  }

 private:
  // Heads of short sequences share a task, rows of long ones are spread over several.
  std::vector<Task> Tasks(const Sequences& sequences, const AttentionHead& head, bool first) const {
    const std::int64_t heads = attributes_.num_heads;
    // Under a window no block shares its keys.
    const std::int64_t task_rows =
        head.window > 0 ? kFewestTaskRows : TaskRows(sequences.begin(sequences.batch) * heads);
    std::vector<Task> tasks;
    for (std::int64_t b = 0; b < sequences.batch; ++b) {
      const std::int64_t length = sequences.length(b);
      if (length == 0) continue;
      const std::int64_t rows = first ? 1 : length;
      const double work = static_cast<double>(rows < task_rows ? rows : task_rows) *
                          static_cast<double>(length) *
                          static_cast<double>(head.head_dim + head.value_dim);
      const double wanted = kTaskWork / work;
      const std::int64_t together = wanted >= static_cast<double>(heads) ? heads
                                    : wanted < 1 ? 1
                                                 : static_cast<std::int64_t>(wanted);
      for (std::int64_t h = 0; h < heads; h += together) {
        const std::int64_t head_end = h + together < heads ? h + together : heads;
        for (std::int64_t row = 0; row < rows; row += task_rows) {
          tasks.push_back({b, h, head_end, row, row + task_rows < rows ? row + task_rows : rows});
        }
      }
    }
    return tasks;
  }

  Spec::Attributes attributes_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> MakeKernel<Spec>(const NodeReader& reader) {
  return std::make_unique<SoftmaxAttentionKernel>(reader);
}

}  // namespace attenuator
