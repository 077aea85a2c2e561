#include "ops/common/attention/importance.h"

#include <algorithm>
#include <string>

namespace attenuator::attention {

void CheckPositions(const char* op, const TensorView& positions, const Sequences& sequences) {
  if (!positions.present()) return;
  const std::int64_t* values = positions.int64s();
  for (std::int64_t b = 0; b < sequences.batch; ++b) {
    for (std::int64_t i = sequences.begin(b) + 1; i < sequences.offsets[b + 1]; ++i) {
      if (values[i] > values[i - 1]) continue;
      Fail(op, "positions[" + std::to_string(i) + "] is " + std::to_string(values[i]) +
                   ", must be above positions[" + std::to_string(i - 1) +
                   "] = " + std::to_string(values[i - 1]) + " of the same sequence");
    }
  }
}

std::vector<KeyRange> RangesOf(const TensorView& positions, const Sequences& sequences,
                               std::int64_t window) {
  if (!positions.present() || window == 0) return {};
  std::vector<KeyRange> ranges(sequences.total);
  for (std::int64_t b = 0; b < sequences.batch; ++b) {
    const std::int64_t* values = positions.int64s() + sequences.begin(b);
    KeyRange* const rows = ranges.data() + sequences.begin(b);
    const std::int64_t length = sequences.length(b);
    // Unsigned, since positions of any size are allowed and ascend.
    const auto apart = [&](std::int64_t low, std::int64_t high) {
      return static_cast<std::uint64_t>(values[high]) - static_cast<std::uint64_t>(values[low]) >
             static_cast<std::uint64_t>(window);
    };
    std::int64_t low = 0, high = 0;
    for (std::int64_t i = 0; i < length; ++i) {
      while (apart(low, i)) ++low;
      high = std::max(high, i);
      while (high < length && !apart(i, high)) ++high;
      rows[i] = {static_cast<std::int32_t>(low), static_cast<std::int32_t>(high)};
    }
  }
  return ranges;
}

void SumHeads(const float* weights, std::int64_t stride, std::int64_t heads, std::int64_t length,
              float* importance) {
  std::copy_n(weights, length, importance);
  for (std::int64_t h = 1; h < heads; ++h) {
    const float* row = weights + h * stride;
    for (std::int64_t j = 0; j < length; ++j) importance[j] += row[j];
  }
}

}  // namespace attenuator::attention
