// Exact attention over whole sequences of a packed batch, for operators that compute it at a value
// of their knob: a row gets the bits that SoftmaxAttention gives it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ops/common/attention/attention.h"
#include "ops/common/check.h"
#include "ops/common/thread_pool.h"

namespace attenuator::attention {

// Rows of one task.
inline constexpr std::int64_t kTaskRows = 4 * kQueryBlock;
// Multiply-adds up to which heads of a short sequence share a task, since handing a smaller one to
// a thread costs more than it saves.
inline constexpr std::int64_t kTaskMacs = 2'000'000;

// Output rows of the sequences that chosen(b) holds for, none of them empty: all, or, where
// `first`, the first of each. head(b, h) is one head of one sequence, output(b, h) where its first
// row goes; rows of the output lie output_stride floats apart.
template <class Chosen, class HeadOf, class OutputOf>
void AttendSequences(ThreadPool& threads, const Sequences& sequences, std::int64_t heads,
                     bool first, const Chosen& chosen, const HeadOf& head, const OutputOf& output,
                     std::int64_t output_stride) {
  struct Task {
    std::int64_t sequence, head_begin, head_end, row_begin, row_end;
  };
  std::vector<Task> tasks;
  for (std::int64_t b = 0; b < sequences.batch; ++b) {
    if (!chosen(b)) continue;
    const Head any = head(b, 0);
    const std::int64_t rows = first ? 1 : any.length, step = std::min(rows, kTaskRows);
    const std::int64_t macs = step * any.length * (any.head_dim + any.value_dim);
    const std::int64_t together = std::clamp<std::int64_t>(kTaskMacs / macs, 1, heads);
    for (std::int64_t h = 0; h < heads; h += together) {
      for (std::int64_t row = 0; row < rows; row += step) {
        tasks.push_back({b, h, std::min(h + together, heads), row, std::min(row + step, rows)});
      }
    }
  }
  threads.For(static_cast<std::int64_t>(tasks.size()), [&](std::int64_t index) {
    const Task& task = tasks[index];
    for (std::int64_t h = task.head_begin; h < task.head_end; ++h) {
      const Head one = head(task.sequence, h);
      float* rows = output(task.sequence, h) + task.row_begin * output_stride;
      if (first) {
        AttendFirstRow(one, rows);
      } else {
        AttendRows(one, task.row_begin, task.row_end, rows, output_stride);
      }
    }
  });
}

}  // namespace attenuator::attention
