// Exact attention of a batch's sequences as tasks for threads: rows of some heads of one sequence.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ops/common/attention/attention.h"
#include "ops/common/attention/inputs.h"
#include "ops/common/tasks.h"
#include "ops/common/thread_pool.h"

namespace attenuator::attention {

struct RowTask {
  std::int64_t sequence;
  std::int64_t head_begin;
  std::int64_t head_end;
  std::int64_t row_begin;
  std::int64_t row_end;
};

// Rows of a long sequence in one task. With more rows, more blocks share keys and values; with
// fewer, there are tasks for more threads.
inline constexpr std::int64_t kFewestTaskRows = 4 * kQueryBlock;
inline constexpr std::int64_t kMostTaskRows = 16 * kQueryBlock;
inline constexpr std::int64_t kManyTasks = 32;

// `rows` is how many the batch has, all heads counted.
inline std::int64_t TaskRows(std::int64_t rows) {
  const std::int64_t share = rows / kManyTasks / kQueryBlock * kQueryBlock;
  return std::clamp(share, kFewestTaskRows, kMostTaskRows);
}

// Adds the tasks for `rows` rows of a sequence of that number, from its first one on. `head` is any
// of its heads; of it length, window and sizes count.
inline void AddRowTasks(const Head& head, std::int64_t sequence, std::int64_t heads,
                        std::int64_t rows, std::int64_t task_rows, std::vector<RowTask>& tasks) {
  if (head.length == 0) return;
  if (head.window > 0) task_rows = kFewestTaskRows;  // no block shares its keys
  const double work = static_cast<double>(std::min(rows, task_rows)) *
                      static_cast<double>(head.length) *
                      static_cast<double>(head.head_dim + head.value_dim);
  const std::int64_t together = HeadsTogether(work, heads);
  for (std::int64_t h = 0; h < heads; h += together) {
    for (std::int64_t row = 0; row < rows; row += task_rows) {
      tasks.push_back({.sequence = sequence,
                       .head_begin = h,
                       .head_end = std::min(h + together, heads),
                       .row_begin = row,
                       .row_end = std::min(row + task_rows, rows)});
    }
  }
}

// Exact attention of the sequences that chosen(b) holds for, empty ones among them or not: a row
// gets the bits that SoftmaxAttention gives it. head_of(b, h) is one head of one sequence.
template <class Chosen, class HeadOf>
void AttendSequences(ThreadPool& threads, const PackedInputs& inputs, std::int64_t heads,
                     const Chosen& chosen, const HeadOf& head_of, float* output) {
  const std::int64_t task_rows = TaskRows(inputs.sequences.total * heads);
  std::vector<RowTask> tasks;
  for (std::int64_t b = 0; b < inputs.sequences.batch; ++b) {
    if (inputs.sequences.length(b) == 0 || !chosen(b)) continue;
    AddRowTasks(head_of(b, 0), b, heads, inputs.query_rows(b), task_rows, tasks);
  }
  threads.For(static_cast<std::int64_t>(tasks.size()), [&](std::int64_t index) {
    const RowTask& task = tasks[index];
    for (std::int64_t h = task.head_begin; h < task.head_end; ++h) {
      const Head head = head_of(task.sequence, h);
      float* rows = inputs.Output(output, task.sequence, h, task.row_begin);
      if (inputs.first) {
        AttendFirstRow(head, rows);
      } else {
        AttendRows(head, task.row_begin, task.row_end, rows, inputs.value.columns());
      }
    }
  });
}

}  // namespace attenuator::attention
