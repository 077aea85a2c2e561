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

// Centring keeps the bound where the rows lie no further from the centre than from 0, on average
// over the keys of every row.
bool Nearer(const float* hidden, std::int64_t channels, const std::vector<float>& norms,
            const float* centre, const Window& window) {
  std::vector<float> distances(norms.size());
  Projection().distances(hidden, centre, window.length, channels, distances.data());
  std::vector<double> gain(norms.size());
  for (std::size_t j = 0; j < norms.size(); ++j) {
    gain[j] = static_cast<double>(norms[j]) - static_cast<double>(distances[j]);
  }
  return SmallestRowSum(gain, window) >= 0;  // false for NaN
}

// The same without a second pass over the rows, where it can be told: the mean distance is at most
// its quadratic mean, sqrt(mean |x_j|^2 - |mu|^2).
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

}  // namespace

bool WorthApproximating(const Window& window, std::int64_t channels, float alpha,
                        Estimator estimator) {
  if (alpha == 0) return false;
  if (estimator == Estimator::kPaper) return true;
  const double a = alpha;
  if (estimator == Estimator::kSampled && a * a * static_cast<double>(channels) <= 1) return false;
  return (window.length <= kStoredLength && !window.narrow()) || 2 * window.keys() <= channels;
}

void Measure(const float* hidden, std::int64_t channels, const Window& window, Estimator estimator,
             SequenceFacts* facts) {
  const std::int64_t n = window.length;
  facts->centre.assign(channels, 0.0f);
  if (estimator == Estimator::kPaper) {
    facts->finite = Projection().finite(hidden, n * channels);
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
  facts->finite = finite || Projection().finite(hidden, n * channels);
  if (!facts->finite) return;
  if (estimator == Estimator::kDeterministic) {
    // Any row may stand in for the dropped ones; the mean is the nearest.
    facts->centred = finite;
    if (!finite) facts->centre.assign(channels, 0.0f);
    facts->distances.resize(n);
    std::vector<double> lengths(n);
    for (std::int64_t j = 0; j < n; ++j) {
      const float* row = hidden + j * channels;
      lengths[j] = Norm(row, nullptr, channels);
      const float distance = static_cast<float>(Norm(row, facts->centre.data(), channels));
      facts->distances[j] = std::nextafterf(distance, INFINITY);
    }
    facts->beta = SmallestRowSum(lengths, window) / static_cast<double>(window.keys());
    return;
  }
  facts->centred = finite && (SurelyNearer(norms, centre_square, window) ||
                              Nearer(hidden, channels, norms, facts->centre.data(), window));
  if (!facts->centred) facts->centre.assign(channels, 0.0f);
}

}  // namespace attenuator::mca
