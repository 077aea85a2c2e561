// How attention by features runs over a packed batch.
//
// A short sequence is one task for some of its heads. A long one is summed up in chunks of a fixed
// size, counted from its start, each by one task; the chunks' states are merged in their order, and
// rows are spread over tasks. So no bit depends on the number of threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ops/common/aligned.h"
#include "ops/common/check.h"
#include "ops/common/tasks.h"
#include "ops/common/thread_pool.h"

namespace attenuator::features {

// Rows of a chunk, at least; a state of so many floats costs a sixth of the chunk's inputs at 64 by
// 64, and chunks of larger states have more rows.
inline constexpr std::int64_t kChunkRows = 1024;
inline constexpr std::int64_t kChunkState = 512 * 80;

// Method knows the batch and has:
//   StateFloats(b), of a head of sequence b;
//   RowWork(b), multiply-adds of one row of a head, as a key and as a query;
//   Summarise(b, h, begin, end, state): state = what keys and values of these rows add up to;
//   Merge(b, state, other): state becomes that of both's rows;
//   Apply(b, h, begin, end, state): writes the output of these query rows.
template <class Method>
class SequenceRunner {
 public:
  SequenceRunner(const Method& method, const Sequences& sequences, std::int64_t heads, bool first)
      : method_(method), sequences_(sequences), heads_(heads), first_(first) {}

  // Computes the sequences that chosen(b) holds for. None of them may be empty.
  template <class Chosen>
  void Run(ThreadPool& threads, const Chosen& chosen) const {
    std::vector<HeadTask> tasks;
    for (std::int64_t b = 0; b < sequences_.batch; ++b) {
      if (!chosen(b)) continue;
      if (sequences_.length(b) > ChunkRows(b)) {
        Long(threads, b);
        continue;
      }
      const std::int64_t work = sequences_.length(b) * method_.RowWork(b);
      AddHeadTasks(b, heads_, static_cast<double>(work), tasks);
    }
    threads.For(static_cast<std::int64_t>(tasks.size()), [&](std::int64_t index) {
      const HeadTask& task = tasks[index];
      Short(task.sequence, task.head_begin, task.head_end);
    });
  }

 private:
  std::int64_t ChunkRows(std::int64_t b) const {
    return (method_.StateFloats(b) + kChunkState - 1) / kChunkState * kChunkRows;
  }

  void Long(ThreadPool& threads, std::int64_t b) const {
    const std::int64_t length = sequences_.length(b), step = ChunkRows(b);
    const std::int64_t chunks = (length + step - 1) / step;
    const std::int64_t floats = method_.StateFloats(b);
    const AlignedArray<float> states = MakeAligned<float>(heads_ * chunks * floats);
    threads.For(heads_ * chunks, [&](std::int64_t task) {
      const std::int64_t begin = task % chunks * step, end = std::min(begin + step, length);
      method_.Summarise(b, task / chunks, begin, end, states.get() + task * floats);
    });
    threads.For(heads_, [&](std::int64_t h) {
      float* all = states.get() + h * chunks * floats;
      for (std::int64_t chunk = 1; chunk < chunks; ++chunk) {
        method_.Merge(b, all, all + chunk * floats);
      }
    });
    const std::int64_t rows = first_ ? 1 : length, parts = (rows + kChunkRows - 1) / kChunkRows;
    threads.For(heads_ * parts, [&](std::int64_t task) {
      const std::int64_t h = task / parts, begin = task % parts * kChunkRows;
      const std::int64_t end = std::min(begin + kChunkRows, rows);
      method_.Apply(b, h, begin, end, states.get() + h * chunks * floats);
    });
  }

  void Short(std::int64_t b, std::int64_t begin, std::int64_t end) const {
    const std::int64_t length = sequences_.length(b);
    const AlignedArray<float> state = MakeAligned<float>(method_.StateFloats(b));
    for (std::int64_t h = begin; h < end; ++h) {
      method_.Summarise(b, h, 0, length, state.get());
      method_.Apply(b, h, 0, first_ ? 1 : length, state.get());
    }
  }

  const Method& method_;
  const Sequences& sequences_;
  std::int64_t heads_;
  bool first_;
};

}  // namespace attenuator::features
