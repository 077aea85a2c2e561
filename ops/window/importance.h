// What each key matters, beside the rows that WindowAttention computes: its weight for the first
// row of its sequence, or its largest weight for any row, summed over heads in their order.
//
// Tasks of rows of the same head share an array of maxima [T] for it; a task that has not all rows
// of its sequence collects its own first, so that the shared one is written once a key. A maximum
// is the same in any order, and so are the bits.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "ops/common/aligned.h"
#include "ops/common/attention/attention.h"
#include "ops/common/attention/importance.h"
#include "ops/common/attention/tasks.h"
#include "ops/common/thread_pool.h"

namespace attenuator::window {

class Importance {
 public:
  // `output` [T] is null where the node leaves importance out; `first` counts row 0 alone.
  Importance(float* output, bool first, const Sequences& sequences, std::int64_t heads)
      : output_(output), first_(first), sequences_(sequences), heads_(heads) {
    if (output != nullptr && !first) maxima_.resize(heads * sequences.total, 0.0f);
  }

  // Rows of a task of head h, none of them alone, into `rows`.
  void AttendRows(const attention::Head& head, const attention::RowTask& task, std::int64_t h,
                  float* rows, std::int64_t stride) {
    const std::int64_t begin = task.row_begin, end = task.row_end;
    if (maxima_.empty()) {
      attention::AttendRows(head, begin, end, rows, stride);
      return;
    }
    float* const maxima = maxima_.data() + h * sequences_.total + sequences_.begin(task.sequence);
    if (begin == 0 && end == head.length) {
      attention::AttendRows(head, begin, end, rows, stride, maxima);
      return;
    }
    std::vector<float> own(head.length, 0.0f);
    attention::AttendRows(head, begin, end, rows, stride, own.data());
    for (std::int64_t j = 0; j < head.length; ++j) Raise(maxima[j], own[j]);
  }

  // Sums over heads; head_of(b, h) is one head of one sequence.
  template <class HeadOf>
  void Sum(ThreadPool& threads, const HeadOf& head_of) const {
    if (output_ == nullptr) return;
    threads.For(sequences_.batch, [&](std::int64_t b) {
      const std::int64_t length = sequences_.length(b), begin = sequences_.begin(b);
      if (length == 0) return;
      if (!first_) {
        attention::SumHeads(maxima_.data() + begin, sequences_.total, heads_, length,
                            output_ + begin);
        return;
      }
      const AlignedArray<float> weights = MakeAligned<float>(length + attention::kQueryBlock);
      for (std::int64_t h = 0; h < heads_; ++h) {
        attention::FirstRowWeights(head_of(b, h), weights.get());
        for (std::int64_t j = 0; j < length; ++j) {
          output_[begin + j] = h == 0 ? weights[j] : output_[begin + j] + weights[j];
        }
      }
    });
  }

 private:
  static void Raise(float& maximum, float value) {
    const std::atomic_ref<float> shared(maximum);
    float largest = shared.load(std::memory_order_relaxed);
    while (value > largest &&
           !shared.compare_exchange_weak(largest, value, std::memory_order_relaxed)) {
    }
  }

  float* output_;
  bool first_;
  const Sequences& sequences_;
  std::int64_t heads_;
  std::vector<float> maxima_;  // [heads, T]
};

}  // namespace attenuator::window
