// The largest eigenvalue by Householder tridiagonalisation and bisection on Sturm sequences
// (Golub and Van Loan, Matrix Computations, 4th ed., sections 8.3.1 and 8.4.1), both backward
// stable: cheaper than Jacobi's method, and bisection gives an upper bound by construction.
#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/mca/cpu/weights.h"

namespace attenuator::mca {
namespace {

// a becomes tridiagonal; `diagonal` and `beside` (beside[i] couples i and i + 1) receive it.
void Tridiagonalise(double* a, std::int64_t n, std::vector<double>& diagonal,
                    std::vector<double>& beside) {
  std::vector<double> u(n), w(n);
  for (std::int64_t k = 0; k + 2 < n; ++k) {
    double norm = 0;
    for (std::int64_t i = k + 1; i < n; ++i) norm += a[i * n + k] * a[i * n + k];
    norm = std::sqrt(norm);
    if (norm == 0) continue;
    const double head = a[(k + 1) * n + k];
    const double target = head > 0 ? -norm : norm;
    for (std::int64_t i = k + 1; i < n; ++i) u[i] = a[i * n + k];
    u[k + 1] -= target;
    double square = 0;
    for (std::int64_t i = k + 1; i < n; ++i) square += u[i] * u[i];
    if (square == 0) continue;
    const double beta = 2 / square;
    double dot = 0;
    for (std::int64_t i = k + 1; i < n; ++i) {
      double sum = 0;
      for (std::int64_t j = k + 1; j < n; ++j) sum += a[i * n + j] * u[j];
      w[i] = beta * sum;
      dot += w[i] * u[i];
    }
    for (std::int64_t i = k + 1; i < n; ++i) w[i] -= 0.5 * beta * dot * u[i];
    for (std::int64_t i = k + 1; i < n; ++i) {
      for (std::int64_t j = k + 1; j < n; ++j) a[i * n + j] -= u[i] * w[j] + w[i] * u[j];
    }
    a[(k + 1) * n + k] = target;
  }
  for (std::int64_t i = 0; i < n; ++i) diagonal[i] = a[i * n + i];
  for (std::int64_t i = 0; i + 1 < n; ++i) beside[i] = a[(i + 1) * n + i];
}

// True where no eigenvalue exceeds x: no pivot of T - x I is positive.
bool Above(double x, const std::vector<double>& diagonal, const std::vector<double>& beside,
           double tiny) {
  double pivot = diagonal[0] - x;
  for (std::size_t i = 0;; ++i) {
    if (pivot > 0) return false;
    if (i + 1 == diagonal.size()) return true;
    if (pivot > -tiny) pivot = -tiny;
    pivot = diagonal[i + 1] - x - beside[i] * beside[i] / pivot;
  }
}

}  // namespace

double LargestEigenvalue(double* matrix, std::int64_t size) {
  double trace = 0;
  for (std::int64_t i = 0; i < size; ++i) trace += matrix[i * size + i];
  if (!(trace > 0) || !std::isfinite(trace)) return trace;
  std::vector<double> diagonal(size), beside(size);
  Tridiagonalise(matrix, size, diagonal, beside);
  // All eigenvalues are non-negative, so the trace bounds the largest; rounding moved each by less
  // than size^2 * 2^-52 * trace.
  const double slack = 1e-10 * trace;
  double low = 0, high = trace + slack;
  for (int step = 0; step < 60 && high - low > slack; ++step) {
    const double middle = 0.5 * (low + high);
    (Above(middle, diagonal, beside, 1e-300 + 1e-18 * trace) ? high : low) = middle;
  }
  return std::min(high + slack, trace + slack);
}

}  // namespace attenuator::mca
