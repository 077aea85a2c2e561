// Attention of the rows of a run: in float, or with products in int8 where the node asks for them,
// the machine has them and the sequence is long enough.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/common/aligned.h"
#include "ops/common/attention/attention.h"
#include "ops/common/attention/tasks.h"
#include "ops/common/thread_pool.h"
#include "ops/softmax/int8.h"

namespace attenuator::softmax {

class RowAttention {
 public:
  // Rounds the keys and values of those sequences whose rows are several tasks, once for all of
  // them; head_of(b, h) is one head of one sequence.
  template <class HeadOf>
  RowAttention(bool int8, const std::vector<attention::RowTask>& tasks, std::int64_t sequences,
               std::int64_t heads, const HeadOf& head_of, ThreadPool& threads)
      : int8_(int8 && HasInt8()) {
    if (!int8_) return;
    places_.resize(sequences, Place{-1, 0});
    std::vector<std::int64_t> several;
    std::int64_t size = 0;
    for (const attention::RowTask& task : tasks) {
      Place& place = places_[task.sequence];
      if (task.row_begin == 0 || place.begin >= 0) continue;
      place = {.begin = size, .head_bytes = RoundedBytes(head_of(task.sequence, 0))};
      size += heads * place.head_bytes;
      several.push_back(task.sequence);
    }
    if (several.empty()) return;
    memory_ = MakeAligned<std::byte>(size);
    threads.For(static_cast<std::int64_t>(several.size()) * heads, [&](std::int64_t index) {
      const std::int64_t b = several[index / heads], h = index % heads;
      RoundKeysAndValues(head_of(b, h), memory_.get() + At(places_[b], h));
    });
  }

  // Rows [begin, end) of head h of sequence b into `output`; `maxima`, as AttendRows takes them,
  // may be null.
  void Attend(const attention::Head& head, std::int64_t b, std::int64_t h, std::int64_t begin,
              std::int64_t end, float* output, std::int64_t stride, float* maxima) const {
    if (int8_ && LongEnoughForInt8(head.length)) {
      const Place& place = places_[b];
      const std::byte* const rounded = place.begin < 0 ? nullptr : memory_.get() + At(place, h);
      AttendRowsInt8(head, rounded, begin, end, output, stride, maxima);
    } else if (maxima == nullptr) {
      attention::AttendRows(head, begin, end, output, stride);
    } else {
      attention::AttendRows(head, begin, end, output, stride, maxima);
    }
  }

 private:
  // Of a sequence's rounded heads in memory_; begin < 0: each task rounds its own.
  struct Place {
    std::int64_t begin;
    std::int64_t head_bytes;
  };
  static std::int64_t At(const Place& place, std::int64_t h) {
    return place.begin + h * place.head_bytes;
  }

  bool int8_;
  std::vector<Place> places_;  // of each sequence; empty without int8
  AlignedArray<std::byte> memory_;
};

}  // namespace attenuator::softmax
