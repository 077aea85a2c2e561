#include "ops/mca/sequence.h"

#include <algorithm>
#include <cmath>

namespace attenuator::mca {
namespace {

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
    const std::int64_t low = std::max<std::int64_t>(0, i - window.radius);
    const std::int64_t high = std::min(n, i + window.radius + 1);
    const double far = window.global && low > 0 ? values[0] : 0.0;
    smallest = std::min(smallest, before[high] - before[low] + far);
  }
  return smallest;
}

// |x| in float64.
double Norm(const float* x, const float* centre, std::int64_t channels) {
  double sum = 0;
  for (std::int64_t k = 0; k < channels; ++k) {
    const double e = static_cast<double>(x[k]) - (centre != nullptr ? centre[k] : 0.0f);
    sum += e * e;
  }
  return std::sqrt(sum);
}

}  // namespace

void Measure(const float* hidden, std::int64_t channels, const Window& window, Estimator estimator,
             SequenceFacts* facts) {
  const std::int64_t n = window.length;
  facts->centre.assign(channels, 0.0f);
  if (estimator == Estimator::kPaper || n == 0) return;
  std::vector<double> sums(channels);
  Projection().column_sums(hidden, n, channels, sums.data());
  bool finite = true;
  for (std::int64_t k = 0; k < channels; ++k) {
    facts->centre[k] = static_cast<float>(sums[k] / static_cast<double>(n));
    finite = finite && std::isfinite(facts->centre[k]);
  }
  if (estimator == Estimator::kDeterministic) {
    // Any row may stand in for the dropped ones; the mean is the nearest.
    facts->centred = finite;
    if (!finite) facts->centre.assign(channels, 0.0f);
    facts->distances.resize(n);
    std::vector<double> norms(n);
    for (std::int64_t j = 0; j < n; ++j) {
      const float* row = hidden + j * channels;
      norms[j] = Norm(row, nullptr, channels);
      const float distance = static_cast<float>(Norm(row, facts->centre.data(), channels));
      facts->distances[j] = std::nextafterf(distance, INFINITY);
    }
    facts->beta = SmallestRowSum(norms, window) / static_cast<double>(window.keys());
    return;
  }
  // Centring keeps the bound where the rows lie no further from the centre than from 0, on average
  // over the keys of every row.
  std::vector<float> norms(n), distances(n);
  Projection().row_norms(hidden, facts->centre.data(), n, channels, norms.data(), distances.data());
  std::vector<double> gain(n);
  for (std::int64_t j = 0; j < n; ++j) {
    gain[j] = static_cast<double>(norms[j]) - static_cast<double>(distances[j]);
  }
  facts->centred = finite && SmallestRowSum(gain, window) >= 0;  // false for NaN
  if (!facts->centred) facts->centre.assign(channels, 0.0f);
}

}  // namespace attenuator::mca
