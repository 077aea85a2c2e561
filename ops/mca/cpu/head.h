// One run of McaAttention, and how it computes one head of one sequence, in one of three ways.
//
// Exact: all values are projected, then attention is SoftmaxAttention's, bit for bit. Stored: the
// attention weights come first and stay in memory, in blocks of rows; their column maxima decide
// how exactly each token's value is projected; then the same weights are multiplied by those
// values. Twice: sequences too long for that compute their scores once for the maxima and again for
// the output. Both first look at a probe, one block of rows: where its maxima predict that
// approximating gains less than finding all maxima costs, the head goes on exactly.
//
// Tasks are blocks of rows, each of which owns its output rows. Column maxima are the one thing
// that rows share: each task raises maxima of its own, which are joined in the end. A maximum does
// not depend on the order, so neither do the bits depend on threads.
//
// Memory: values [length, padded] and, where stored, the weights of one head at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/common/attention/attention.h"
#include "ops/common/check.h"
#include "ops/common/thread_pool.h"
#include "ops/mca/cpu/projection.h"
#include "ops/mca/cpu/sequence.h"

namespace attenuator::mca {

struct HeadResult {
  double columns = 0;  // multiply-adds spent on values, divided by head_dim
  bool finite = true;  // the inputs that this head has to check are finite
};

// The inputs, checked.
struct Call {
  const spec::McaAttention::Attributes& attributes;
  const Weights& weights;
  Sequences sequences;
  Sequences unmerged;
  const float* query;
  const float* key;
  const float* hidden;
  const float* bias;  // [H, padded]
  const float* alpha;
  const std::int64_t* seed;
  float* output;
  const attention::KeyRange* ranges;  // [T]; null: windows measure row numbers
  bool row_0;                         // `head_weights` are those of row 0, not of all rows
  float* head_weights;                // [H, T], zeros: importance of each head; null: none
  std::vector<SequenceFacts> facts;
  std::vector<HeadResult> heads;  // [B, H]

  bool first() const { return attributes.queries == spec::McaAttention::Queries::kFirst; }
  std::int64_t width() const { return weights.num_heads * weights.head_dim; }
  Window window(std::int64_t b) const {
    return {sequences.length(b), attributes.window, attributes.global_tokens == 1,
            ranges == nullptr ? nullptr : ranges + sequences.begin(b)};
  }
  std::int64_t query_row(std::int64_t b) const { return first() ? b : sequences.begin(b); }
  float* head_output(std::int64_t b, std::int64_t h) const {
    return output + query_row(b) * width() + h * weights.head_dim;
  }
  // Where a head's importance goes: [length].
  float* importance(std::int64_t b, std::int64_t h) const {
    return head_weights + h * sequences.total + sequences.begin(b);
  }
  // Where the maxima of all rows go, null where they are not asked for.
  float* maxima(std::int64_t b, std::int64_t h) const {
    return head_weights == nullptr || row_0 ? nullptr : importance(b, h);
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

  // Whether any head of the sequence can gain: in the best case (one column for every token, or all
  // tokens replaced) the savings must exceed the fixed cost and that of finding the maxima.
  bool approximate(std::int64_t b) const {
    const Window seen = window(b);
    const Estimator estimator = attributes.estimator;
    if (first() || !WorthApproximating(seen, weights.channels, alpha[b], estimator)) return false;
    if (estimator == Estimator::kPaper) return true;
    const double tokens = static_cast<double>(seen.length);
    const double channels = static_cast<double>(weights.channels);
    const double cost = ProbeOf(seen).rows > 0 ? MaximaCost(seen, weights.padded) : 0.0;
    return estimator == Estimator::kSampled
               ? WorthSampling(tokens, tokens, channels, weights.padded, cost)
               : WorthReplacing(tokens, channels, cost);
  }

  // The head's queries, keys and sizes; `value` is set once the values are computed.
  attention::Head head(std::int64_t b, std::int64_t h) const;
  SequenceRows rows(std::int64_t b) const;
};

// Floats that a head needs for its values and, where they are kept, its attention weights.
std::int64_t HeadFloats(const Call& call, std::int64_t b);
// RunShortHead and RunLongHead write the head's output rows; the sequence must not be empty. A head
// checks its columns of query and key for NaN and infinity and, where the sequence is not
// approximated, 1 / H of the columns of `hidden`, since it reads those rows anyway.
//
// For at most kStoredLength tokens, or queries = first.
HeadResult RunShortHead(const Call& call, std::int64_t b, std::int64_t h);
// For more tokens. `memory` holds HeadFloats floats, 64-byte aligned.
HeadResult RunLongHead(const Call& call, std::int64_t b, std::int64_t h, float* memory,
                       ThreadPool& threads);

}  // namespace attenuator::mca
