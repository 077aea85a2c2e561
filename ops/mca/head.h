// One run of McaAttention, and how it computes one head of one sequence.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/common/check.h"
#include "ops/common/thread_pool.h"
#include "ops/mca/projection.h"
#include "ops/mca/sequence.h"
#include "ops/softmax/kernel.h"

namespace attenuator::mca {

// Up to this length a head is one task and, without a window, keeps its attention weights, 2.25 MiB
// at most a thread. Above it the scores are computed twice, and a head is spread over the threads.
inline constexpr std::int64_t kStoredLength = 768;

// The inputs, checked.
struct Call {
  const spec::McaAttention::Attributes& attributes;
  const Weights& weights;
  Sequences sequences;
  const float* query;
  const float* key;
  const float* hidden;
  const float* bias;  // [H, padded]
  const float* alpha;
  const std::int64_t* seed;
  float* output;
  std::vector<SequenceFacts> facts;
  std::vector<double> columns;  // [B, H]: multiply-adds spent, divided by head_dim

  bool first() const { return attributes.queries == spec::McaAttention::Queries::kFirst; }
  std::int64_t width() const { return weights.num_heads * weights.head_dim; }
  Window window(std::int64_t b) const {
    return {sequences.length(b), attributes.window, attributes.global_tokens == 1};
  }
  std::int64_t query_row(std::int64_t b) const { return first() ? b : sequences.begin(b); }
  float* head_output(std::int64_t b, std::int64_t h) const {
    return output + query_row(b) * width() + h * weights.head_dim;
  }
  const float* hidden_rows(std::int64_t b) const {
    return hidden + sequences.begin(b) * weights.channels;
  }
  const float* head_bias(std::int64_t h) const { return bias + h * weights.padded; }

  // Multiply-adds of (A X) W_a for a row that sees `keys` keys, divided by head_dim.
  double FirstRowColumns(std::int64_t keys) const {
    return static_cast<double>(weights.channels) *
           (1 + static_cast<double>(keys) / static_cast<double>(weights.head_dim));
  }

  // Whether anything may be approximated: not at alpha 0; not where the scores would have to be
  // computed twice for it and that costs more than the value projection could save; nor, by
  // sampling, where r is C or more in the mean: sum_j max_i A_ij >= 1, so mean r >= 1 / alpha^2.
  bool approximate(std::int64_t b) const {
    if (alpha[b] == 0) return false;
    if (attributes.estimator == Estimator::kPaper) return true;
    const double a = alpha[b];
    if (attributes.estimator == Estimator::kSampled &&
        a * a * static_cast<double>(weights.channels) <= 1) {
      return false;
    }
    const Window keys = window(b);
    return (keys.length <= kStoredLength && !keys.narrow()) || 2 * keys.keys() <= weights.channels;
  }

  // The head's attention; its values are not known yet.
  AttentionHead head(std::int64_t b, std::int64_t h) const;
  SequenceRows rows(std::int64_t b) const;
};

// Both write the head's output rows and return the multiply-adds spent on values, divided by
// head_dim. The sequence is not empty, and finite.
// With at most kStoredLength tokens, or queries = first.
double RunShortHead(const Call& call, std::int64_t b, std::int64_t h);
// With more. `values` holds [length, padded] floats.
double RunLongHead(const Call& call, std::int64_t b, std::int64_t h, float* values,
                   ThreadPool& threads);

}  // namespace attenuator::mca
