// What a sequence's heads share, found in one or two passes over its rows `hidden` [length, C].
//
// The first pass sums columns (float64) and squares (float32) for the centre, which is the mean
// row, and the rows' norms. Centring pays where rows lie nearer to the centre than to 0; where the
// sums alone do not prove that, a second pass measures the distances. `deterministic` always takes
// the second pass, in float64, since its bound rests on these numbers, and rounds distances up.
//
// Sums over the keys that a row of a window sees are differences of running sums. All of it runs on
// one thread for each sequence.
#include "ops/mca/cpu/sequence.h"

#include <algorithm>
#include <cmath>

#include "ops/common/attention/attention.h"

namespace attenuator::mca {
namespace {

static_assert(kProbeRows == attention::kQueryBlock,
              "attention finds the maxima of a block of rows");

// Smallest sum of `values` over the keys of a row, over all rows (row 0 of a global window aside).
double SmallestRowSum(const std::vector<double>& values, const Window& window) {
  const std::int64_t n = window.length;
  if (!window.narrow()) {
    double sum = 0;
    for (const double value : values) sum += value;
    return sum;
  }
  std::vector<double> before(n + 1, 0.0);
  for (std::int64_t j = 0; j < n; ++j) before[j + 1] = before[j] + values[j];
  double smallest = INFINITY;
  for (std::int64_t i = window.global ? 1 : 0; i < n; ++i) {
    const attention::KeyRange seen = window.seen(i);
    const double far = window.global && seen.begin > 0 ? values[0] : 0.0;
    const double sum = before[seen.end] - before[seen.begin] + far;
    if (!(sum >= smallest)) smallest = sum;  // NaN stays
  }
  return smallest;
}

// Centring keeps the bound where the rows lie no further from the centre than from 0, on average
// over the keys of every row.
template <class Real>
bool Nearer(const std::vector<Real>& norms, const std::vector<Real>& distances,
            const Window& window) {
  std::vector<double> gain(norms.size());
  for (std::size_t j = 0; j < norms.size(); ++j) {
    gain[j] = static_cast<double>(norms[j]) - static_cast<double>(distances[j]);
  }
  return SmallestRowSum(gain, window) >= 0;  // false for NaN
}

// A sufficient condition for Nearer that needs no second pass over the rows: the mean distance is
// at most the quadratic mean, sqrt(mean |x_j|^2 - |mu|^2).
bool SurelyNearer(const std::vector<float>& norms, double centre_square, const Window& window) {
  if (window.narrow()) return false;
  double sum = 0, squares = 0;
  for (const float norm : norms) {
    sum += norm;
    squares += static_cast<double>(norm) * norm;
  }
  const double n = static_cast<double>(window.length);
  return std::sqrt(std::max(0.0, squares / n - centre_square)) * (1 + 1e-5) <= sum / n;
}

// Whether the mean row is to be taken off. Squares of `norms` and of distances fit into float32
// where the largest norm is of usual size.
bool IsNearer(const float* hidden, std::int64_t channels, const std::vector<float>& norms,
              const SequenceFacts& facts, double centre_square, const Window& window) {
  constexpr float kSmallest = 1e-15f, kLargest = 1e18f;
  const std::size_t n = norms.size();
  const float largest = *std::max_element(norms.begin(), norms.end());
  if (!(largest > kSmallest && largest < kLargest)) {
    std::vector<double> exact_norms(n), distances(n);
    Projection().exact_norms(hidden, facts.centre.data(), window.length, channels,
                             exact_norms.data(), distances.data());
    return Nearer(exact_norms, distances, window);
  }
  if (SurelyNearer(norms, centre_square, window)) return true;
  std::vector<float> distances(n);
  Projection().distances(hidden, facts.centre.data(), window.length, channels, distances.data());
  return Nearer(norms, distances, window);
}

}  // namespace

bool WorthApproximating(const Window& window, std::int64_t channels, float alpha,
                        Estimator estimator) {
  if (alpha == 0 || (window.narrow() && window.keys() > kStoredLength)) return false;
  if (estimator == Estimator::kPaper) return true;
  const double a = alpha;
  if (estimator == Estimator::kSampled && a * a * static_cast<double>(channels) <= 1) return false;
  return window.keys() <= kStoredLength || 2 * window.keys() <= channels;
}

Probe ProbeOf(const Window& window) {
  Probe probe;
  probe.rows = kProbeRows;
  std::int64_t seeing = window.length;  // rows that see a token
  if (window.narrow()) {
    // The first rows see fewer keys than others, so each key gets more weight; likewise the last.
    probe.first_row = (window.radius + kProbeRows - 1) / kProbeRows * kProbeRows;
    probe.first_token = probe.first_row;
    probe.tokens = kProbeRows;
    seeing = std::min(window.length, 2 * window.radius + 1);
  } else {
    probe.tokens = window.length;
  }
  // The largest of n normally distributed scores lies about sqrt(2 ln n) deviations above the mean:
  // see GROWTH_DIVISOR in rule.py.
  const double growing = static_cast<double>(seeing) / kProbeRows;
  probe.growth_exponent = std::max(0.0, std::log2(growing) / kGrowthDivisor);
  return probe.first_row + probe.rows < window.length ? probe : Probe{};
}

double MaximaCost(const Window& window, std::int64_t padded) {
  const std::int64_t n = window.length;
  const std::int64_t block_keys = window.narrow() ? kProbeRows + 2 * window.radius : n;
  const double weights = static_cast<double>(n * std::min(n, block_keys));
  if (!window.stored()) return kTwiceCost * weights;
  // Beside the weights: queries, keys, values and output.
  const double in_use = weights + static_cast<double>(4 * n * padded);
  return std::min(kTwiceCost, kStoringCost * in_use) * weights;
}

void Measure(const float* hidden, std::int64_t channels, const Window& window, Estimator estimator,
             SequenceFacts* facts) {
  const std::int64_t n = window.length;
  facts->centre.assign(channels, 0.0f);
  if (estimator == Estimator::kPaper) {
    facts->finite = Projection().finite(hidden, n, channels, channels);
    return;
  }
  std::vector<double> sums(channels);
  std::vector<float> norms(n);
  Projection().moments(hidden, n, channels, sums.data(), norms.data());
  bool finite = true;
  double centre_square = 0;
  for (std::int64_t k = 0; k < channels; ++k) {
    facts->centre[k] = static_cast<float>(sums[k] / static_cast<double>(n));
    finite = finite && std::isfinite(facts->centre[k]);
    centre_square += static_cast<double>(facts->centre[k]) * facts->centre[k];
  }
  // A sum is not finite where a row is not, or where finite rows overflow it.
  facts->finite = finite || Projection().finite(hidden, n, channels, channels);
  if (!facts->finite) return;
  if (estimator == Estimator::kDeterministic) {
    // Any row could replace the dropped ones; the mean has the smallest squared distance to all.
    facts->centred = finite;
    if (!finite) facts->centre.assign(channels, 0.0f);
    facts->distances.resize(n);
    std::vector<double> exact_norms(n), distances(n);
    Projection().exact_norms(hidden, facts->centre.data(), n, channels, exact_norms.data(),
                             distances.data());
    for (std::int64_t j = 0; j < n; ++j) {
      facts->distances[j] = std::nextafterf(static_cast<float>(distances[j]), INFINITY);
    }
    facts->beta = SmallestRowSum(exact_norms, window) / static_cast<double>(window.keys());
    return;
  }
  facts->centred = finite && IsNearer(hidden, channels, norms, *facts, centre_square, window);
  if (!facts->centred) facts->centre.assign(channels, 0.0f);
}

}  // namespace attenuator::mca
