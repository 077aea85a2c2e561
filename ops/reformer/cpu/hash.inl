// Lengths and buckets of ReformerAttention's rows, for any Simd.
//
// Rows go through in blocks of 64 that are transposed first, as queries are: a row's coordinates
// lie in one lane, and its largest magnitude, its squares and its rounding need no horizontal step.
// Projections are a tile [row of the random matrix, row of x] of common/attention, whose extremes
// run along from tile to tile, with the places of the first ones.
//
// Rows are rounded to whole numbers up to 127 and the matrix holds whole numbers up to 255, kept as
// floats: with at most 256 coordinates every product and every sum of them is a whole number below
// 2^24, which float32 holds exactly. So neither the order of additions nor the width of registers
// matters, and equal projections are equal everywhere.
#pragma once

#include "ops/common/attention/cpu/block.inl"
#include "ops/reformer/cpu/kernel.h"

namespace attenuator::reformer {
namespace {

using namespace attention;  // NOLINT: the steps below are theirs

constexpr float kTiniest = 1e-30f;    // rows smaller than this are rounded as if it were their size
constexpr float kNormFloor = 1e-12f;  // rows shorter than this are keys shorter than 1
static_assert(kBlock == kQueryBlock && kBlock == kKeyBlock);

Head HeadOf(const HeadRows& rows, float scale) {
  Head head;
  head.length = rows.length;
  head.head_dim = rows.head_dim;
  head.value_dim = rows.value_dim;
  head.scale = scale;
  head.value = rows.value;
  head.value_stride = rows.value_stride;
  return head;
}

// Transposes `count` rows; row(i) is the i-th, lanes beyond the last repeat it.
template <class Row>
void PackRows(std::int64_t head_dim, std::int64_t count, const Row& row, float* packed,
              std::int64_t pitch) {
  for (std::int64_t lane = 0; lane < count; lane += kWidth) {
    const std::int64_t last = count - 1 - lane;
    const float* base[kWidth];
    for (int i = 0; i < kWidth; ++i) base[i] = row(lane + Smaller(i, last));
    PackLanes(head_dim, [&](int i) { return base[i]; }, packed + lane, pitch);
  }
}

// visit(begin, count, packed) for blocks of rows, transposed [head_dim, kBlock].
template <class Visit>
void ForPacked(const HeadRows& rows, float* packed, const Visit& visit) {
  for (std::int64_t begin = 0; begin < rows.length; begin += kBlock) {
    const std::int64_t count = Smaller(kBlock, rows.length - begin);
    PackRows(
        rows.head_dim, count, [&](std::int64_t i) { return rows.x + (begin + i) * rows.x_stride; },
        packed, kBlock);
    visit(begin, count);
  }
}

// The largest magnitude of each lane's row; NaN does not count.
inline Vector LargestOf(const float* packed, std::int64_t head_dim) {
  Vector largest = Simd::Set(kTiniest);
  for (std::int64_t k = 0; k < head_dim; ++k) {
    largest = Simd::Max(Simd::Abs(Simd::Load(packed + k * kBlock)), largest);
  }
  return largest;
}

// Lengths are taken of rows over their largest coordinate, whose squares neither overflow nor
// vanish.
void KeyFactors(const HeadRows& rows, float* factors, float* packed) {
  ForPacked(rows, packed, [&](std::int64_t begin, std::int64_t count) {
    for (std::int64_t lane = 0; lane < count; lane += kWidth) {
      const Vector inverse = Simd::Div(Simd::Set(1.0f), LargestOf(packed + lane, rows.head_dim));
      Vector squares = Simd::Zero();
      for (std::int64_t k = 0; k < rows.head_dim; ++k) {
        const Vector y = Simd::Mul(Simd::Load(packed + k * kBlock + lane), inverse);
        squares = Simd::Fma(y, y, squares);
      }
      const Vector floor = Simd::Mul(Simd::Set(kNormFloor), inverse);
      const Vector factor = Simd::Div(inverse, Simd::Max(Simd::Sqrt(squares), floor));
      Simd::StoreFirst(factors + begin + lane, factor, Smaller(kWidth, count - lane));
    }
  });
}

// packed = whole numbers in [-127, 127]; NaN becomes one of them.
inline void Quantise(float* packed, std::int64_t head_dim) {
  const Vector most = Simd::Set(127.0f), least = Simd::Set(-127.0f);
  const Vector steps = Simd::Div(most, LargestOf(packed, head_dim));
  for (std::int64_t k = 0; k < head_dim; ++k) {
    float* at = packed + k * kBlock;
    const Vector bounded = Simd::Min(Simd::Max(Simd::Mul(Simd::Load(at), steps), least), most);
    Simd::Store(at, Simd::FloatOf(Simd::Round(bounded)));
  }
}

// Of each lane the largest and the smallest projection so far, and the first rows of the matrix
// that have them.
struct Extremes {
  alignas(64) float high[kBlock], low[kBlock], high_at[kBlock], low_at[kBlock];

  void Reset() {
    for (std::int64_t lane = 0; lane < kBlock; ++lane) {
      high[lane] = kLowest;
      low[lane] = -kLowest;
      high_at[lane] = low_at[lane] = 0.0f;
    }
  }
  void Take(const float* projected, std::int64_t first, std::int64_t last, std::int64_t lane) {
    Vector most = Simd::Load(high + lane), least = Simd::Load(low + lane);
    Vector most_at = Simd::Load(high_at + lane), least_at = Simd::Load(low_at + lane);
    for (std::int64_t p = first; p < last; ++p) {
      const Vector s = Simd::Load(projected + (p - first) * kBlock + lane);
      const Vector at = Simd::Set(static_cast<float>(p));
      most_at = Simd::WhereGreater(s, most, at, most_at);
      least_at = Simd::WhereGreater(least, s, at, least_at);
      most = Simd::Max(s, most);
      least = Simd::Min(s, least);
    }
    Simd::Store(high + lane, most);
    Simd::Store(low + lane, least);
    Simd::Store(high_at + lane, most_at);
    Simd::Store(low_at + lane, least_at);
  }
  std::int32_t Bucket(std::int64_t lane, std::int64_t half) const {
    return high[lane] >= -low[lane] ? static_cast<std::int32_t>(high_at[lane])
                                    : static_cast<std::int32_t>(half + low_at[lane]);
  }
};

void Buckets(const HeadRows& rows, const float* matrix, std::int64_t half, std::int32_t* buckets,
             float* memory) {
  Head head = HeadOf(rows, 1.0f);
  head.key = matrix;
  head.key_stride = rows.head_dim;
  const Scratch scratch(head, memory);
  Extremes extremes;
  ForPacked(rows, scratch.query, [&](std::int64_t begin, std::int64_t count) {
    for (std::int64_t lane = 0; lane < count; lane += kWidth) {
      Quantise(scratch.query + lane, rows.head_dim);
    }
    extremes.Reset();
    for (std::int64_t first = 0; first < half; first += kBlock) {
      const std::int64_t last = Smaller(first + kBlock, half);
      Score(head, scratch.query, count, first, last, scratch.scores, kBlock);
      for (std::int64_t lane = 0; lane < count; lane += kWidth) {
        extremes.Take(scratch.scores, first, last, lane);
      }
    }
    for (std::int64_t lane = 0; lane < count; ++lane) {
      buckets[begin + lane] = extremes.Bucket(lane, half);
    }
  });
}

}  // namespace
}  // namespace attenuator::reformer
