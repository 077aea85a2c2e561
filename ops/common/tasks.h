// Some heads of one sequence as a task for a thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace attenuator {

// Multiply-adds under which handing a task to another thread costs more than it wins. Heads of
// short sequences share a task until it has about so many.
inline constexpr double kTaskWork = 2e6;

// Heads that share a task of `work` multiply-adds each.
inline std::int64_t HeadsTogether(double work, std::int64_t heads) {
  const double together = kTaskWork / work;
  return together >= static_cast<double>(heads) ? heads
         : together < 1                         ? 1
                                                : static_cast<std::int64_t>(together);
}

struct HeadTask {
  std::int64_t sequence;
  std::int64_t head_begin;
  std::int64_t head_end;
};

// Adds the tasks for all heads of a sequence of that number, `work` multiply-adds each.
inline void AddHeadTasks(std::int64_t sequence, std::int64_t heads, double work,
                         std::vector<HeadTask>& tasks) {
  const std::int64_t together = HeadsTogether(work, heads);
  for (std::int64_t h = 0; h < heads; h += together) {
    tasks.push_back({sequence, h, std::min(h + together, heads)});
  }
}

}  // namespace attenuator
