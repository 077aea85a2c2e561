// Packs W_v [C, H * D] by head and computes what sampling and its bounds need to know of it.
//
// A head's weight becomes [C, padded] with D rounded up to whole registers by zeros: a row of it is
// what one column of the input is multiplied by. p_k is the share of row k in the head's squared
// Frobenius norm (README.md, section 2), held as 1 / p_k; the estimators that sample read a second
// copy of the rows, already divided by p_k. `paper` searches p's distribution function in integers,
// with a table of where to begin. `deterministic` needs the spectral norm: the root of the largest
// eigenvalue of the D x D Gram matrix.
//
// All norms are float64. A head whose weight is zero or not finite, or whose scaled rows overflow,
// is never approximated. Runs once for a constant weight, so that nothing here is vectorised.
#include "ops/mca/cpu/weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace attenuator::mca {
namespace {

std::vector<double> RowSquares(const float* head, std::int64_t channels, std::int64_t padded) {
  std::vector<double> squares(channels);
  for (std::int64_t k = 0; k < channels; ++k) {
    double sum = 0;
    for (std::int64_t d = 0; d < padded; ++d) {
      const double w = head[k * padded + d];
      sum += w * w;
    }
    squares[k] = sum;
  }
  return squares;
}

// Computes 1 / p of Poisson sampling; returns the smallest.
float PoissonInverse(const std::vector<double>& squares, double total, float* inverse_p) {
  float smallest = std::numeric_limits<float>::infinity();
  for (std::size_t k = 0; k < squares.size(); ++k) {
    inverse_p[k] = squares[k] > 0 ? static_cast<float>(1 / std::max(squares[k] / total, kSmallestP))
                                  : std::numeric_limits<float>::infinity();
    smallest = std::min(smallest, inverse_p[k]);
  }
  return smallest;
}

// p of sampling with replacement, cut to multiples of 1 / kDrawRange: a search among integers then
// draws column k with exactly the probability that it is weighted by.
void PaperInverse(const std::vector<double>& squares, double total, std::uint64_t* cdf,
                  float* inverse_p) {
  std::size_t last = 0;
  for (std::size_t k = 0; k < squares.size(); ++k) {
    if (squares[k] > 0) last = k;
  }
  double sum = 0;
  std::uint64_t before = 0;
  for (std::size_t k = 0; k < squares.size(); ++k) {
    sum += squares[k];
    cdf[k] = k >= last ? kDrawRange
                       : static_cast<std::uint64_t>(std::min(1.0, sum / total) * kDrawRange);
    inverse_p[k] = cdf[k] > before ? static_cast<float>(static_cast<double>(kDrawRange) /
                                                        static_cast<double>(cdf[k] - before))
                                   : std::numeric_limits<float>::infinity();
    before = cdf[k];
  }
}

void MakeGuide(const std::uint64_t* cdf, std::int32_t* guide) {
  std::int32_t k = 0;
  for (std::int64_t i = 0; i < kGuideSize; ++i) {
    while (cdf[k] <= static_cast<std::uint64_t>(i) << kGuideShift) ++k;
    guide[i] = k;
  }
}

double SpectralNorm(const float* head, std::int64_t channels, std::int64_t padded,
                    std::int64_t head_dim) {
  std::vector<double> gram(head_dim * head_dim, 0.0);
  for (std::int64_t k = 0; k < channels; ++k) {
    const float* row = head + k * padded;
    for (std::int64_t i = 0; i < head_dim; ++i) {
      const double w = row[i];
      for (std::int64_t j = 0; j < head_dim; ++j) gram[i * head_dim + j] += w * row[j];
    }
  }
  return std::sqrt(LargestEigenvalue(gram.data(), head_dim)) * (1 + 1e-12);
}

}  // namespace

Weights PackWeights(const float* value_weight, std::int64_t channels, std::int64_t num_heads,
                    std::int64_t head_dim, Estimator estimator, bool approximate) {
  Weights packed{};
  packed.channels = channels;
  packed.num_heads = num_heads;
  packed.head_dim = head_dim;
  packed.padded = PaddedColumns(head_dim);
  const std::int64_t size = channels * packed.padded;
  packed.weight = MakeAligned<float>(num_heads * size);
  std::memset(packed.weight.get(), 0, sizeof(float) * num_heads * size);
  for (std::int64_t h = 0; h < num_heads; ++h) {
    for (std::int64_t k = 0; k < channels; ++k) {
      std::memcpy(packed.weight.get() + h * size + k * packed.padded,
                  value_weight + (k * num_heads + h) * head_dim, sizeof(float) * head_dim);
    }
  }
  if (!approximate) return packed;

  const bool samples = estimator != Estimator::kDeterministic;
  packed.frobenius.resize(num_heads);
  packed.approximable.resize(num_heads);
  if (samples) {
    packed.min_inverse_p.resize(num_heads);
    packed.inverse_p = MakeAligned<float>(num_heads * channels);
    packed.scaled = MakeAligned<float>(num_heads * size);
    if (estimator == Estimator::kPaper) {
      packed.cdf.resize(num_heads * channels);
      packed.guide.resize(num_heads * kGuideSize);
    }
  } else {
    packed.spectral.resize(num_heads);
  }
  for (std::int64_t h = 0; h < num_heads; ++h) {
    const float* head = packed.weight.get() + h * size;
    const std::vector<double> squares = RowSquares(head, channels, packed.padded);
    double total = 0;
    for (const double square : squares) total += square;
    packed.frobenius[h] = std::sqrt(total);
    packed.approximable[h] = total > 0 && std::isfinite(total);
    if (!packed.approximable[h]) continue;
    if (!samples) {
      packed.spectral[h] = SpectralNorm(head, channels, packed.padded, head_dim);
      continue;
    }
    float* inverse_p = packed.inverse_p.get() + h * channels;
    packed.min_inverse_p[h] = PoissonInverse(squares, total, inverse_p);
    if (estimator == Estimator::kPaper) {
      PaperInverse(squares, total, packed.cdf.data() + h * channels, inverse_p);
      MakeGuide(packed.cdf.data() + h * channels, packed.guide.data() + h * kGuideSize);
    }
    float* scaled = packed.scaled.get() + h * size;
    for (std::int64_t k = 0; k < channels; ++k) {
      for (std::int64_t d = 0; d < packed.padded; ++d) {
        const std::int64_t i = k * packed.padded + d;
        scaled[i] = std::isinf(inverse_p[k]) ? 0.0f : head[i] * inverse_p[k];
        if (!std::isfinite(scaled[i])) packed.approximable[h] = false;
      }
    }
  }
  return packed;
}

}  // namespace attenuator::mca
