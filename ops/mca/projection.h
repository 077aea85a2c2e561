// The approximate value projection of one head of one sequence, by any of the estimators.
//
// A plan is made from the column maxima of the attention matrix and the sequence's own data alone;
// its tasks may then run on any threads in any order. README.md has the mathematics.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/mca/weights.h"

namespace attenuator::mca {

// Sampled multiply-adds run at about 7/8 of the speed of dense ones, so a token with r above that
// share of C is computed exactly: faster, and without an error.
inline constexpr double kBreakEven = 0.875;
// Drawing and selecting costs a head as much as about this many multiply-adds a column: with less
// to save, all of it is computed exactly.
inline constexpr double kSamplingCost = 640;

// The deterministic rule leaves this share of the bound to the rounding of float32.
inline constexpr double kRoundingMargin = 1.0 / 16;

// What the estimators need to know of one sequence, whatever the head.
struct SequenceRows {
  const float* hidden = nullptr;  // [length, C]
  std::int64_t length = 0;
  double keys = 0;  // n of the formula for r: keys that a row sees, at most
  double alpha = 0;
  std::int64_t seed = 0;
  bool centred = false;
  const float* centre = nullptr;     // [C]: the mean row, or zeros where not centred
  const float* distances = nullptr;  // [length], at least |x_j - centre|; `deterministic`
  double beta = 0;      // smallest (1/keys) sum |x_j| over a row's keys; `deterministic`
  double overhead = 0;  // columns that approximating costs the head beside its tokens
};

class HeadProjection {
 public:
  // `maxima` [length]: the largest attention weight of each token. `bias` [padded]. All are
  // borrowed until the last task has run. Some rows of `values` [length, padded] are written here,
  // the others by the tasks.
  HeadProjection(const Weights& weights, std::int64_t head, std::uint32_t layer,
                 Estimator estimator, const SequenceRows& rows, const float* maxima,
                 const float* bias, float* values);

  std::int64_t tasks() const { return static_cast<std::int64_t>(columns_.size()); }
  void Run(std::int64_t task);
  // Whether any token is approximated.
  bool approximates() const { return !approximated_.empty(); }
  // Multiply-adds spent, divided by head_dim; after all tasks.
  double columns() const;

 private:
  void PlanSamples(const float* maxima, double limit);
  void PlanDeterministic(const float* maxima);
  void KeepAllExact();
  void Sort(const std::vector<std::int32_t>& r, std::int32_t highest);
  void ProjectCentre();
  void DrawCandidates();

  double RunExact(std::int64_t begin, std::int64_t end) const;
  double RunSampled(std::int64_t begin, std::int64_t end) const;
  double RunPaper(std::int64_t begin, std::int64_t end) const;

  const Weights& weights_;
  const std::int64_t head_;
  const std::uint32_t layer_;
  const Estimator estimator_;
  const SequenceRows rows_;
  const PackedHead packed_;
  const float* const bias_;
  float* const values_;

  std::vector<std::int32_t> exact_;         // tokens, ascending
  std::vector<std::int32_t> approximated_;  // tokens; `sampled`: by falling r
  std::vector<std::int32_t> r_;             // of approximated_
  std::vector<float> base_;                 // [padded]: bias + centre W_a
  std::int64_t exact_begin_ = 0;            // of exact_, what is left to the tasks
  // Columns that any token keeps, ascending; a token keeps those whose reach is at most its r.
  std::vector<std::int32_t> candidates_;
  std::vector<float> reach_;
  std::vector<float> inverse_p_;
  std::int64_t exact_tasks_ = 0;
  std::vector<double> columns_;  // spent by each task
  double centre_columns_ = 0;
};

}  // namespace attenuator::mca
