// Layer norms of LongShortAttention's keys and values, for any Simd.
//
// A row at a time, four passes over at most 256 floats that stay in the first cache: its mean, what
// that has rounded off, the centred elements and the sum of their squares, then factors and terms.
// Memory traffic is one read and one write of the row. The mean is taken off before squares are
// added up, so that a row far from 0 loses no digits; it is the nearest float to the true one where
// elements lie close together, so that equal ones leave 0, however large. Where a sum overflows,
// the row is scaled down. Lanes are added up in a fixed order: a row's bits follow from the row
// alone.
#include <cmath>
#include <limits>

#include "ops/longshort/cpu/kernel.h"

namespace attenuator::longshort {
namespace {

using Vector = Simd::Vector;
constexpr std::int64_t kWidth = Simd::kWidth;
// Takes any row whose sum of squares overflows to where it does not; a power of 2, so that nothing
// is rounded.
constexpr float kSmall = 0x1p-70f;
constexpr std::int64_t kMostColumns = 256;  // of a head

// visit(c, count) for each vector of columns; count < kWidth for the last one where it is cut off.
template <class Visit>
[[gnu::always_inline]] inline void ForVectors(std::int64_t columns, const Visit& visit) {
  std::int64_t c = 0;
  for (; c + kWidth <= columns; c += kWidth) visit(c, kWidth);
  if (c < columns) visit(c, columns - c);
}

inline Vector Load(const float* row, std::int64_t count) {
  return count == kWidth ? Simd::Load(row) : Simd::LoadFirst(row, count);
}

// `to` = `row` times a factor, less `mean`; elements behind the last one are 0 up to a whole
// vector. take(vector) for each vector of it.
template <class Take>
[[gnu::always_inline]] inline void Shift(const float* row, std::int64_t columns, float factor,
                                         float mean, float* to, const Take& take) {
  const Vector times = Simd::Set(factor), less = Simd::Set(mean);
  ForVectors(columns, [&](std::int64_t c, std::int64_t some) {
    const Vector shifted = Simd::Sub(Simd::Mul(Load(row + c, some), times), less);
    if (some == kWidth) {
      Simd::Store(to + c, shifted);
    } else {
      Simd::Store(to + c, Simd::Zero());
      Simd::StoreFirst(to + c, shifted, some);
    }
    take(Simd::Load(to + c));
  });
}

// `to` = `row` times a factor, without its mean; returns its variance. Elements behind the last one
// are 0 up to a whole vector.
float Centre(const float* row, std::int64_t columns, float factor, float* to) {
  const float share = 1.0f / static_cast<float>(columns);
  float mean = 0.0f;
  for (int pass = 0; pass < 2; ++pass) {  // the second adds what the first has rounded off
    Vector sum = Simd::Zero();
    Shift(row, columns, factor, mean, to, [&](Vector part) { sum = Simd::Add(sum, part); });
    mean += Simd::Sum(sum) * share;
  }
  Vector squares = Simd::Zero();
  Shift(row, columns, factor, mean, to,
        [&](Vector part) { squares = Simd::Fma(part, part, squares); });
  return Simd::Sum(squares) * share;
}

void NormaliseRows(const Norm& norm, HeadRows rows, std::int64_t count, float* to,
                   std::int64_t pitch) {
  const std::int64_t columns = norm.columns, padded = PaddedToVectors(columns);
  alignas(64) float centred[kMostColumns];  // apart: `to` may be where the rows are
  for (std::int64_t i = 0; i < count; ++i, to += pitch) {
    const float* row = rows.data + i * rows.stride;
    float variance = Centre(row, columns, 1.0f, centred), epsilon = norm.epsilon;
    if (!std::isfinite(variance)) {  // of large elements; where one is not finite, so it stays
      variance = Centre(row, columns, kSmall, centred);
      // Too small to count beside any variance but 0, that of equal elements.
      epsilon = std::numeric_limits<float>::min();
    }
    const Vector inverse = Simd::Set(1.0f / std::sqrt(variance + epsilon));
    ForVectors(columns, [&](std::int64_t c, std::int64_t some) {
      const Vector factor = Load(norm.factor + c, some), term = Load(norm.term + c, some);
      const Vector y = Simd::Fma(Simd::Mul(Simd::Load(centred + c), inverse), factor, term);
      Simd::Store(to + c, y);
    });
    for (std::int64_t c = (columns + kWidth - 1) / kWidth * kWidth; c < padded; ++c) to[c] = 0.0f;
  }
}

}  // namespace
}  // namespace attenuator::longshort
