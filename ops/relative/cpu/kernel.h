// One head of one sequence of RelativeAttention on the CPU.
#pragma once

#include <cstdint>

#include "ops/common/attention/cpu/paths.h"

namespace attenuator::relative {

// Lanes of a block: columns of the score tiles and of the tables' products.
inline constexpr std::int64_t kLanes = attention::kQueryBlock;

// Where the pairs of a sequence find their rows in the tables.
struct Distances {
  // Behind this pointer and before it, for each distance i - j in [-reach, reach]: (row - first) *
  // kLanes. Without positions reach is at least length + kLanes, so that no distance is beyond it.
  const std::int32_t* places = nullptr;
  std::int64_t reach = 0;
  // Of the sequence's rows, from the first row's; the last one is repeated kLanes times. Null where
  // they are row indices.
  const std::int32_t* positions = nullptr;
  std::int64_t first = 0;  // the lowest row that this sequence needs
  std::int64_t rows = 0;   // and how many from it on
};

// The tables of one head; null where the node has none.
struct Tables {
  const float* pos_key = nullptr;  // rows `pos_stride` apart, as those of pos_query
  const float* pos_query = nullptr;
  std::int64_t pos_stride = 0;
  const float* bias = nullptr;  // rows `bias_stride` apart
  std::int64_t bias_stride = 0;

  bool by_query() const { return pos_key != nullptr || bias != nullptr; }
};

constexpr std::int64_t Blocks(std::int64_t length) { return (length + kLanes - 1) / kLanes; }
// Floats of scratch memory, 64-byte aligned, for all rows of a sequence or for the first one.
constexpr std::int64_t ScratchFloats(const attention::Head& head, const Tables& tables,
                                     const Distances& distances, bool first) {
  if (first) return attention::ScratchFloats(head, 1) + Blocks(head.length) * kLanes;
  const std::int64_t table = distances.rows * kLanes;
  const std::int64_t scores = Blocks(head.length) * kLanes * kLanes;
  return attention::ScratchFloats(head, 1) + scores + (tables.by_query() ? table : 0) +
         (tables.pos_query != nullptr ? Blocks(head.length) * table : 0);
}

// Softmax weights of a head that the caller asks for beside its output.
struct Importance {
  float* weights = nullptr;  // [length]: of row 0, or the largest of all rows; null: none
  bool maximum = false;
};

// The kernels of one instruction set. `head` has no window.
struct Kernels {
  // Every row of the sequence.
  void (*rows)(const attention::Head& head, const Tables& tables, const Distances& distances,
               float* output, std::int64_t output_stride, Importance importance, float* scratch);
  // Row 0 alone, by a path that is fast for one row; its weights are those of all rows.
  void (*first_row)(const attention::Head& head, const Tables& tables, const Distances& distances,
                    float* output, float* weights, float* scratch);
};

const Kernels& KernelsAvx2();
const Kernels& KernelsAvx512();

}  // namespace attenuator::relative
