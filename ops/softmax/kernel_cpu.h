// What the instruction sets implement and kernel_cpu.cc dispatches to.
#pragma once

#include "ops/softmax/kernel.h"

namespace attenuator {

// Entry points of one instruction set. `scratch` holds SoftmaxScratchFloats(head) floats, 64-byte
// aligned.
struct SoftmaxKernels {
  void (*attention)(const AttentionHead& head, std::int64_t begin, std::int64_t end, float* output,
                    std::int64_t output_stride, float* scratch);
  void (*first_row)(const AttentionHead& head, float* output, float* scratch);
  void (*column_maxima)(const AttentionHead& head, std::int64_t begin, std::int64_t end,
                        float* maxima, float* scratch);
  void (*probabilities)(const AttentionHead& head, std::int64_t begin, std::int64_t end,
                        float* probabilities, float* inverse_sums, float* maxima, float* scratch);
  void (*values)(const AttentionHead& head, std::int64_t begin, std::int64_t end,
                 const float* probabilities, const float* inverse_sums, float* output,
                 std::int64_t output_stride, float* scratch);
};

const SoftmaxKernels& SoftmaxKernelsAvx2();
const SoftmaxKernels& SoftmaxKernelsAvx512();

// Keys that are scored before their values are added up. Boundaries lie at multiples of it from the
// start of the sequence, whatever the rows, so that a row's sums do not depend on its neighbours.
inline constexpr std::int64_t kKeyBlock = 64;

// Queries and scores of a block, its output so far, and a key block of values in whole vectors.
inline constexpr std::int64_t kWidestVector = 16;

constexpr std::int64_t PaddedToVectors(std::int64_t columns) {
  return (columns + kWidestVector - 1) / kWidestVector * kWidestVector;
}

constexpr std::int64_t SoftmaxScratchFloats(const AttentionHead& head) {
  return PaddedToVectors(head.head_dim) * kQueryBlock + kKeyBlock * kQueryBlock +
         PaddedToVectors(head.value_dim) * (kQueryBlock + kKeyBlock) + 3 * kQueryBlock;
}

}  // namespace attenuator
