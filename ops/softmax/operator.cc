// SoftmaxAttention: checks, then one task for each (sequence, heads, query rows).
#include <atomic>
#include <cstring>
#include <vector>

#include "ops/common/aligned.h"
#include "ops/common/attention/attention.h"
#include "ops/common/attention/importance.h"
#include "ops/common/attention/tasks.h"
#include "ops/common/registry.h"
#include "ops/softmax/inputs.h"
#include "ops/softmax/row_attention.h"

namespace attenuator::softmax {
namespace {

using Spec = spec::SoftmaxAttention;

using attention::RowTask;

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
      head.last_key_rows = static_cast<float>(RowsOfLast(inputs.unmerged, sequences, b));
      head.query = query.floats() + (first ? b : begin) * query.columns() + h * head.head_dim;
      head.key = key.floats() + begin * key.columns() + h * head.head_dim;
      head.value = value.floats() + begin * value.columns() + h * head.value_dim;
      if (!ranges.empty()) head.ranges = ranges.data() + begin;
      return head;
    };
    const std::vector<RowTask> tasks = Tasks(sequences, shared, first);
    const RowAttention row_attention(attributes_.int8_products == 1 && !first, tasks,
                                     sequences.batch, attributes_.num_heads, head_of,
                                     context.threads());
    const std::int64_t count = static_cast<std::int64_t>(tasks.size());
    context.threads().For(count + (row_0 ? sequences.batch : 0), [&](std::int64_t index) {
      if (index >= count) {
        const std::int64_t b = index - count;
        SumFirstRows(sequences.length(b), importance + sequences.begin(b),
                     [&](std::int64_t h) { return head_of(b, h); });
        return;
      }
      const RowTask& task = tasks[index];
      const std::int64_t begin = sequences.begin(task.sequence);
      const std::int64_t row = (first ? task.sequence : begin) + task.row_begin;
      for (std::int64_t h = task.head_begin; h < task.head_end; ++h) {
        const attention::Head head = head_of(task.sequence, h);
        float* const rows = output + row * value.columns() + h * head.value_dim;
        if (first) {
          attention::AttendFirstRow(head, rows);
          continue;
        }
        const auto attend = [&](float* highest) {
          row_attention.Attend(head, task.sequence, h, task.row_begin, task.row_end, rows,
                               value.columns(), highest);
        };
        if (maximum) {
          TakeMaxima(head.length, task, attend, maxima.data() + h * sequences.total + begin);
        } else {
          attend(nullptr);
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

  // Takes the maxima that attend(maxima) finds in a task's rows, of a sequence of that length, into
  // `maxima` [length], which tasks of the same head share.
  template <class Attend>
  static void TakeMaxima(std::int64_t length, const RowTask& task, const Attend& attend,
                         float* maxima) {
    if (task.row_begin == 0 && task.row_end == length) {
      attend(maxima);
      return;
    }
    std::vector<float> own(length, 0.0f);
    attend(own.data());
    for (std::int64_t j = 0; j < length; ++j) {
      const std::atomic_ref<float> shared(maxima[j]);
      float largest = shared.load(std::memory_order_relaxed);
      while (own[j] > largest &&
             !shared.compare_exchange_weak(largest, own[j], std::memory_order_relaxed)) {
      }
    }
  }

  std::vector<RowTask> Tasks(const Sequences& sequences, attention::Head head, bool first) const {
    const std::int64_t heads = attributes_.num_heads;
    const std::int64_t task_rows = attention::TaskRows(sequences.total * heads);
    std::vector<RowTask> tasks;
    for (std::int64_t b = 0; b < sequences.batch; ++b) {
      head.length = sequences.length(b);
      attention::AddRowTasks(head, b, heads, first ? 1 : head.length, task_rows, tasks);
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
