// What the instruction sets implement and attention.cc dispatches to.
#pragma once

#include "ops/common/attention/attention.h"
#include "ops/common/rows.h"

namespace attenuator::attention {

// Entry points of one instruction set. `scratch` is 64-byte aligned and holds
// ScratchFloats(head, slots) floats: Slots(head, end - begin) for attention, else 1.
struct Kernels {
  void (*attention)(const Head& head, std::int64_t begin, std::int64_t end, float* output,
                    std::int64_t output_stride, float* scratch);
  // The same with column maxima; `kept` is 64-byte aligned and holds KeptFloats(head).
  void (*attention_maxima)(const Head& head, std::int64_t begin, std::int64_t end, float* output,
                           std::int64_t output_stride, float* maxima, float* kept, float* scratch);
  void (*first_row)(const Head& head, float* output, float* scratch);
  void (*first_row_weights)(const Head& head, float* weights, float* scratch);
  void (*column_maxima)(const Head& head, std::int64_t begin, std::int64_t end, float* maxima,
                        float* scratch);
  void (*probabilities)(const Head& head, std::int64_t begin, std::int64_t end,
                        float* probabilities, float* factors, float* maxima, float* scratch);
  void (*values)(const Head& head, std::int64_t begin, std::int64_t end, const float* probabilities,
                 const float* factors, float* output, std::int64_t output_stride, float* scratch);
};

const Kernels& KernelsAvx2();
const Kernels& KernelsAvx512();

// Keys that are scored before their values are added up. Boundaries lie at multiples of it from the
// start of the sequence, whatever the rows, so that a row's sums do not depend on its neighbours.
inline constexpr std::int64_t kKeyBlock = 64;

// The probabilities and factors of one block of rows, or the weights of one row.
constexpr std::int64_t KeptFloats(const Head& head) {
  const std::int64_t block = kQueryBlock * (BlockKeys(head) + 1 + BlockPieces(head));
  const std::int64_t row = head.length + kQueryBlock;
  return block < row ? row : block;
}

// Queries and output so far of one block, with its maxima and sums.
constexpr std::int64_t SlotFloats(const Head& head) {
  return (PaddedToVectors(head.head_dim) + PaddedToVectors(head.value_dim) + 2) * kQueryBlock;
}

// Blocks of queries that share each key block while it is in the cache, and the floats that all of
// them may take of it. Blocks under a window see different keys.
inline constexpr std::int64_t kGroupBlocks = 16;
inline constexpr std::int64_t kGroupFloats = 136 * 1024;

constexpr std::int64_t Slots(const Head& head, std::int64_t rows) {
  if (head.window > 0 || rows <= kQueryBlock) return 1;
  const std::int64_t blocks = (rows + kQueryBlock - 1) / kQueryBlock;
  const std::int64_t most = kGroupFloats / SlotFloats(head);
  const std::int64_t slots = blocks < kGroupBlocks ? blocks : kGroupBlocks;
  return most < 1 ? 1 : slots < most ? slots : most;
}

// Scores of a block, a key block of values in whole vectors, a factor a row, and the blocks.
constexpr std::int64_t ScratchFloats(const Head& head, std::int64_t slots) {
  return kKeyBlock * (kQueryBlock + PaddedToVectors(head.value_dim)) + kQueryBlock +
         slots * SlotFloats(head);
}

}  // namespace attenuator::attention
