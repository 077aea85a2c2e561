// Exact attention of a batch's sequences as tasks for threads: rows of some heads of one sequence.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ops/common/attention/attention.h"

namespace attenuator::attention {

struct RowTask {
  std::int64_t sequence;
  std::int64_t head_begin;
  std::int64_t head_end;
  std::int64_t row_begin;
  std::int64_t row_end;
};

// Rows of a long sequence in one task. With more rows, more blocks share keys and values; with
// fewer, there are tasks for more threads. Heads of short sequences share a task until it has about
// kTaskWork multiply-adds, since handing a smaller one to a thread costs more than it saves.
inline constexpr std::int64_t kFewestTaskRows = 4 * kQueryBlock;
inline constexpr std::int64_t kMostTaskRows = 16 * kQueryBlock;
inline constexpr std::int64_t kManyTasks = 32;
inline constexpr double kTaskWork = 2e6;

// `rows` is how many the batch has, all heads counted.
inline std::int64_t TaskRows(std::int64_t rows) {
  const std::int64_t share = rows / kManyTasks / kQueryBlock * kQueryBlock;
  return std::clamp(share, kFewestTaskRows, kMostTaskRows);
}

// Heads that share a task of `work` multiply-adds each.
inline std::int64_t HeadsTogether(double work, std::int64_t heads) {
  const double together = kTaskWork / work;
  return together >= static_cast<double>(heads) ? heads
         : together < 1                         ? 1
                                                : static_cast<std::int64_t>(together);
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

}  // namespace attenuator::attention
