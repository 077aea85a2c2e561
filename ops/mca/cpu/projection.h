// The approximate value projection of one head of one sequence, by any of the estimators.
//
// A plan is made from the column maxima of the attention matrix and the sequence's own data alone;
// its tasks may then run on any threads in any order. README.md has the mathematics.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "mca_rule.gen.h"
#include "ops/common/host_device.h"
#include "ops/mca/cpu/weights.h"

namespace attenuator::mca {

// The constants of these rules, and what they stand for, are in ops/mca/rule.py.

// Fixed cost of sampling a head, in dense rows.
ATTENUATOR_HOST_DEVICE inline constexpr double HeadCost(std::int64_t padded) {
  return kHeadCost + kHeadCostLanes / static_cast<double>(padded);
}
// Whether sampling `tokens` tokens of a head with `samples` columns in all is faster than computing
// them exactly.
ATTENUATOR_HOST_DEVICE inline constexpr bool WorthSampling(double tokens, double samples,
                                                           double channels, std::int64_t padded,
                                                           double overhead) {
  return tokens * (kTokenGain * channels) - kColumnCost * samples >=
         HeadCost(padded) * channels + overhead;
}

// Whether replacing `tokens` tokens by the mean row is faster: the mean row is projected too.
ATTENUATOR_HOST_DEVICE inline constexpr bool WorthReplacing(double tokens, double channels,
                                                            double overhead) {
  return channels * (tokens - 1) > overhead;
}

// A block of rows of a head, whose column maxima predict whether finding those of all rows pays.
struct Probe {
  std::int64_t first_row = 0, rows = 0;      // multiples of kProbeRows; rows = 0: no probe
  std::int64_t first_token = 0, tokens = 0;  // whose maxima count
  // Maxima over all rows are predicted as the probe's maxima times g to this power, where g is
  // their mean in units of 1 / keys.
  double growth_exponent = 0;
};

// Predicted factor between maxima over all rows and the probe's; `sum` is that of the probe's.
ATTENUATOR_HOST_DEVICE inline double Growth(const Probe& probe, double keys, double sum) {
  const double mean = keys / static_cast<double>(probe.tokens) * sum;
  return mean > 1 ? pow(mean, probe.growth_exponent) : 1.0;
}

// One sequence as the estimators see it: what does not depend on the head.
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
  double overhead = 0;  // cost of approximating the head beside its tokens, in columns
  Probe probe;
  double maxima_cost = 0;  // extra cost of finding the maxima, in columns
};

// Whether approximating the head is predicted to save more than finding all its maxima costs, from
// `maxima` [length] over the probe's rows. If false, the head is computed exactly. True where there
// is no probe.
bool ProbePays(const Weights& weights, std::int64_t head, Estimator estimator,
               const SequenceRows& rows, const float* maxima);

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
  void PlanSamples(const float* maxima);
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
  std::int64_t exact_begin_ = 0;            // the tasks compute exact_ from here on
  // Columns that any token keeps, ascending; a token keeps those whose reach is at most its r.
  std::vector<std::int32_t> candidates_;
  std::vector<float> reach_;
  std::vector<float> inverse_p_;
  std::int64_t exact_tasks_ = 0;
  std::vector<double> columns_;  // spent by each task
  double centre_columns_ = 0;
};

}  // namespace attenuator::mca
