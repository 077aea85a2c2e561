// SoftmaxAttention: checks, then one task for each (sequence, heads, query rows).
#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "ops/common/aligned.h"
#include "ops/common/attention/attention.h"
#include "ops/common/attention/importance.h"
#include "ops/common/registry.h"
#include "ops/softmax/inputs.h"

namespace attenuator::softmax {
namespace {

using Spec = spec::SoftmaxAttention;

// Rows of a long sequence in one task. With more rows, more blocks share keys and values; with
// fewer, there are tasks for more threads. Heads of short sequences share a task until it has about
// kTaskWork multiply-adds, since handing a smaller one to a thread costs more than it saves.
constexpr std::int64_t kFewestTaskRows = 4 * attention::kQueryBlock;
constexpr std::int64_t kMostTaskRows = 16 * attention::kQueryBlock;
constexpr std::int64_t kManyTasks = 32;
constexpr double kTaskWork = 2e6;

std::int64_t TaskRows(std::int64_t rows) {
  const std::int64_t share = rows / kManyTasks / attention::kQueryBlock * attention::kQueryBlock;
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
    CheckAttributes(attributes_);
  }

  void Run(RunContext& context) const override {
    const Inputs inputs = CheckInputs(context, attributes_);
    const TensorView &query = inputs.query, &key = inputs.key, &value = inputs.value;
    const Sequences& sequences = inputs.sequences;
    const bool first = inputs.first;
    const attention::Head shared{.query_stride = query.columns(),
                                 .key_stride = key.columns(),
                                 .value_stride = value.columns(),
                                 .head_dim = inputs.head_dim,
                                 .value_dim = inputs.value_dim,
                                 .scale = inputs.scale,
                                 .window = attributes_.window,
                                 .global_token = attributes_.global_tokens == 1};
    float* output =
        static_cast<float*>(context.Output(Spec::kOutputOutput, {query.rows(), value.columns()}));
    float* const importance =
        attention::ImportanceOutput<Spec>(context, attributes_, sequences.total);
    attention::CheckPositions(Spec::kName, inputs.positions, sequences);
    const std::vector<attention::KeyRange> ranges =
        attention::RangesOf(inputs.positions, sequences, attributes_.window);
    // Of row 0 alone, or the largest of all rows.
    const bool row_0 =
        importance != nullptr && (first || attributes_.importance == Spec::Importance::kFirst);
    const bool maximum = importance != nullptr && !row_0;
    std::vector<float> maxima(maximum ? attributes_.num_heads * sequences.total : 0, 0.0f);

    if (first) {
      for (std::int64_t b = 0; b < sequences.batch; ++b) {
        if (sequences.length(b) != 0) continue;
        std::memset(output + b * value.columns(), 0, sizeof(float) * value.columns());
      }
    }
    const auto head_of = [&](std::int64_t b, std::int64_t h) {
      const std::int64_t begin = sequences.begin(b);
      attention::Head head = shared;
      head.length = sequences.length(b);
      head.query = query.floats() + (first ? b : begin) * query.columns() + h * head.head_dim;
      head.key = key.floats() + begin * key.columns() + h * head.head_dim;
      head.value = value.floats() + begin * value.columns() + h * head.value_dim;
      if (!ranges.empty()) head.ranges = ranges.data() + begin;
      return head;
    };
    const std::vector<Task> tasks = Tasks(sequences, shared, first);
    const std::int64_t count = static_cast<std::int64_t>(tasks.size());
    context.threads().For(count + (row_0 ? sequences.batch : 0), [&](std::int64_t index) {
      if (index >= count) {
        const std::int64_t b = index - count;
        SumFirstRows(sequences.length(b), importance + sequences.begin(b),
                     [&](std::int64_t h) { return head_of(b, h); });
        return;
      }
      const Task& task = tasks[index];
      const std::int64_t begin = sequences.begin(task.sequence);
      const std::int64_t row = (first ? task.sequence : begin) + task.row_begin;
      for (std::int64_t h = task.head_begin; h < task.head_end; ++h) {
        const attention::Head head = head_of(task.sequence, h);
        float* const rows = output + row * value.columns() + h * head.value_dim;
        if (first) {
          attention::AttendFirstRow(head, rows);
        } else if (maximum) {
          AttendWithMaxima(head, task, rows, value.columns(),
                           maxima.data() + h * sequences.total + begin);
        } else {
          attention::AttendRows(head, task.row_begin, task.row_end, rows, value.columns());
        }
      }
    });
    if (!maximum) return;
    context.threads().For(sequences.batch, [&](std::int64_t b) {
      attention::SumHeads(maxima.data() + sequences.begin(b), sequences.total,
                          attributes_.num_heads, sequences.length(b),
                          importance + sequences.begin(b));
    });
  }

 private:
  // importance[j] = sum over heads of the weight of row 0, in the order of heads; head(h) is one.
  template <class HeadOf>
  void SumFirstRows(std::int64_t length, float* importance, const HeadOf& head) const {
    if (length == 0) return;
    const AlignedArray<float> weights = MakeAligned<float>(length + attention::kQueryBlock);
    for (std::int64_t h = 0; h < attributes_.num_heads; ++h) {
      attention::FirstRowWeights(head(h), weights.get());
      for (std::int64_t j = 0; j < length; ++j) {
        importance[j] = h == 0 ? weights[j] : importance[j] + weights[j];
      }
    }
  }

  // Output rows of a task's sequence, and the maxima of all its rows into `maxima` [length], which
  // tasks of the same head share.
  static void AttendWithMaxima(const attention::Head& head, const Task& task, float* rows,
                               std::int64_t stride, float* maxima) {
    if (task.row_begin == 0 && task.row_end == head.length) {
      attention::AttendRows(head, task.row_begin, task.row_end, rows, stride, maxima);
      return;
    }
    std::vector<float> own(head.length, 0.0f);
    attention::AttendRows(head, task.row_begin, task.row_end, rows, stride, own.data());
    for (std::int64_t j = 0; j < head.length; ++j) {
      const std::atomic_ref<float> shared(maxima[j]);
      float largest = shared.load(std::memory_order_relaxed);
      while (own[j] > largest &&
             !shared.compare_exchange_weak(largest, own[j], std::memory_order_relaxed)) {
      }
    }
  }

  // Heads of short sequences share a task, rows of long ones are spread over several.
  std::vector<Task> Tasks(const Sequences& sequences, const attention::Head& head,
                          bool first) const {
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
      const double heads_a_task = kTaskWork / work;
      const std::int64_t together = heads_a_task >= static_cast<double>(heads) ? heads
                                    : heads_a_task < 1 ? 1
                                                       : static_cast<std::int64_t>(heads_a_task);
      for (std::int64_t h = 0; h < heads; h += together) {
        const std::int64_t head_end = h + together < heads ? h + together : heads;
        for (std::int64_t row = 0; row < rows; row += task_rows) {
          tasks.push_back({.sequence = b,
                           .head_begin = h,
                           .head_end = head_end,
                           .row_begin = row,
                           .row_end = std::min(row + task_rows, rows)});
        }
      }
    }
    return tasks;
  }

  Spec::Attributes attributes_;
};

}  // namespace
}  // namespace attenuator::softmax

namespace attenuator {

template <>
std::unique_ptr<Kernel> MakeKernel<spec::SoftmaxAttention>(const NodeReader& reader) {
  return std::make_unique<softmax::SoftmaxAttentionKernel>(reader);
}

}  // namespace attenuator
