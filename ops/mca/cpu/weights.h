// W_v in the kernels' layout, and what the estimators need to know about it. Computed once per node
// where the weight is a constant, else at every run.
#pragma once

#include <cstdint>
#include <vector>

#include "mca_rule.gen.h"
#include "operators.gen.h"
#include "ops/common/aligned.h"
#include "ops/common/context.h"
#include "ops/common/philox.h"
#include "ops/mca/cpu/kernel.h"

namespace attenuator::mca {

using Estimator = spec::McaAttention::Estimator;

// `paper` draws with uniform integers below kDrawRange.
inline constexpr std::uint64_t kDrawRange = std::uint64_t{1} << kDrawBits;

// Draw 0 or 1 of a block of the stream.
ATTENUATOR_HOST_DEVICE inline std::uint64_t DrawOf(const PhiloxWords& words, int draw) {
  const std::uint64_t high = draw == 0 ? words.word[0] : words.word[2];
  const std::uint64_t low = draw == 0 ? words.word[1] : words.word[3];
  return (high << 32 | low) >> (64 - kDrawBits);
}

// Entries of the table that tells where in a distribution function a search starts.
inline constexpr std::int64_t kGuideSize = 1024;
inline constexpr int kGuideShift = kDrawBits - 10;

struct Weights {
  std::int64_t channels;   // C
  std::int64_t num_heads;  // H
  std::int64_t head_dim;   // D
  std::int64_t padded;     // D rounded up to kPadding

  AlignedArray<float> weight;        // [H, C, padded]
  AlignedArray<float> scaled;        // [H, C, padded], weight / p; estimators that sample
  AlignedArray<float> inverse_p;     // [H, C]; inf where the row is zero
  std::vector<std::uint64_t> cdf;    // [H, C], in units of 1 / kDrawRange; `paper`
  std::vector<std::int32_t> guide;   // [H, kGuideSize]: first k with cdf[k] > i << kGuideShift
  std::vector<float> min_inverse_p;  // [H]
  std::vector<double> frobenius;     // [H], ||W_a||_F
  std::vector<double> spectral;      // [H], at least ||W_a||_2; `deterministic`
  std::vector<bool> approximable;    // [H]: false where the head's weight is zero or not finite

  PackedHead head(std::int64_t h) const {
    const std::int64_t offset = h * channels * padded;
    return {weight.get() + offset, scaled ? scaled.get() + offset : nullptr, padded};
  }
};

// `value_weight` is [C, H * D].
Weights PackWeights(const float* value_weight, std::int64_t channels, std::int64_t num_heads,
                    std::int64_t head_dim, Estimator estimator, bool approximate);

// An upper bound, tight to 1e-9, of the largest eigenvalue of a symmetric positive semi-definite
// matrix [size, size], which is overwritten.
double LargestEigenvalue(double* matrix, std::int64_t size);

}  // namespace attenuator::mca
