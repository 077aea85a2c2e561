// RfaAttention's kernels for any Simd.
//
// A block of 64 rows at a time: rows of length 1 times a factor, and their products with the
// directions, go to scratch; then sines and cosines of these are the features, and products of
// register tiles add the block to the state (keys), or read it (queries). At 256 directions, 64 by
// 64, directions take 64 KiB, sines and cosines 128 KiB and the state 160 KiB: all of it stays in
// the second-level cache, and memory traffic is one read of each input and one write of the output.
//
// Numerics: lengths are summed in double precision in eight lanes, so that no row overflows. The
// factor holds 2 / pi: products are quarters of a turn, of which the nearest whole number is taken
// off without rounding; sine and cosine of what is left, at most an eighth of a turn, are
// polynomials whose error is below 1e-7. 1 / sqrt(m) of the published features is left out, since
// it is a factor of numerators and denominator alike, and of the denominator's least value.
//
// Every element is a chain of fused multiply-adds in the order of dimensions, rows or features; it
// is the same on AVX2 and AVX-512.
#include "ops/common/features/cpu/state.inl"
#include "ops/rfa/cpu/kernel.h"

namespace attenuator::rfa {
namespace {

using attention::ByColumn;
using attention::ByRow;
using attention::Product;
using attention::Smaller;
using attention::Vector;

// Minimax polynomials in r^2 for |r| <= 1/2: sin(pi/2 r) / r and cos(pi/2 r).
constexpr float kSine[4] = {1.570796321966807f, -0.6459634786417223f, 0.07968022806732418f,
                            -0.004602176997044226f};
constexpr float kCosine[5] = {0.9999999999526004f, -1.2337005406473656f, 0.25366920393916365f,
                              -0.020860071318151558f, 0.0009036317021369434f};

template <int kTerms>
inline Vector Polynomial(const float (&a)[kTerms], Vector x) {
  Vector y = Simd::Set(a[kTerms - 1]);
#pragma GCC unroll 4
  for (int i = kTerms - 2; i >= 0; --i) y = Simd::Fma(y, x, Simd::Set(a[i]));
  return y;
}

// Sine and cosine of quarters * pi / 2; of NaN NaN.
inline void SineCosine(Vector quarters, Vector& sine, Vector& cosine) {
  const auto whole = Simd::Round(quarters);
  const Vector r = Simd::Sub(quarters, Simd::FloatOf(whole)), square = Simd::Mul(r, r);
  const Vector s = Simd::Mul(r, Polynomial(kSine, square)), c = Polynomial(kCosine, square);
  // Signs of these are the last bits of the whole number: an odd one changes the two, the next bit
  // is the sign of the sine, and of the cosine of the quarter behind.
  const Vector odd = Simd::FloatOfBits(Simd::ShiftLeft(whole, 31));
  const Vector half = Simd::FloatOfBits(Simd::ShiftLeft(whole, 30));
  const Vector next =
      Simd::FloatOfBits(Simd::ShiftLeft(Simd::Add(whole, Simd::Set(std::int32_t{1})), 30));
  const Vector zero = Simd::Zero();
  const Vector up = Simd::WhereNegative(odd, c, s), across = Simd::WhereNegative(odd, s, c);
  sine = Simd::WhereNegative(half, Simd::Sub(zero, up), up);
  cosine = Simd::WhereNegative(next, Simd::Sub(zero, across), across);
}

void UnitRows(HeadRows rows, std::int64_t count, std::int64_t head_dim, double factor,
              float* output) {
  for (std::int64_t i = 0; i < count; ++i) {
    const float* row = rows.data + i * rows.stride;
    double sums[8] = {};
    std::int64_t c = 0;
    for (; c + 8 <= head_dim; c += 8) {
      for (int lane = 0; lane < 8; ++lane) {
        const double x = row[c + lane];
        sums[lane] += x * x;
      }
    }
    for (; c < head_dim; ++c) sums[c % 8] += static_cast<double>(row[c]) * row[c];
    for (int step = 4; step > 0; step /= 2) {
      for (int lane = 0; lane < step; ++lane) sums[lane] += sums[lane + step];
    }
    const double length = __builtin_sqrt(sums[0]);
    const double times = factor / (length < kNormFloor ? kNormFloor : length);
    float* to = output + i * head_dim;
    for (c = 0; c < head_dim; ++c) to[c] = static_cast<float>(row[c] * times);
  }
}

struct Scratch {
  Scratch(const HeadShape& shape, float* memory)
      : sines(memory),
        cosines(sines + kBlock * Pitch(shape.num_features)),
        rows(cosines + kBlock * Pitch(shape.num_features)),
        values(rows + kBlock * shape.head_dim) {}

  float* sines;    // [rows][Pitch(num_features)]
  float* cosines;  // the same
  float* rows;     // [rows][head_dim]
  float* values;   // [rows][columns]
};

// Sines and cosines of a block's rows.
void Features(const HeadShape& shape, HeadRows rows, std::int64_t count, const Scratch& scratch) {
  const std::int64_t columns = PaddedToVectors(shape.num_features);
  const std::int64_t pitch = Pitch(shape.num_features);
  UnitRows(rows, count, shape.head_dim, shape.factor, scratch.rows);
  Product<ByRow, false>::Run(scratch.rows, shape.head_dim, shape.head_dim, shape.directions,
                             shape.pitch, shape.head_dim, count, columns, scratch.sines, pitch);
  for (std::int64_t i = 0; i < count; ++i) {
    for (std::int64_t k = i * pitch; k < i * pitch + columns; k += Simd::kWidth) {
      Vector sine, cosine;
      SineCosine(Simd::Load(scratch.sines + k), sine, cosine);
      Simd::Store(scratch.sines + k, sine);
      Simd::Store(scratch.cosines + k, cosine);
    }
  }
}

void Summarise(const HeadShape& shape, HeadRows key, HeadRows value, std::int64_t count,
               float* state, float* memory) {
  const Scratch scratch(shape, memory);
  const std::int64_t columns = shape.columns(), m = shape.num_features;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t rows = Smaller(kBlock, count - begin);
    Features(shape, key.From(begin), rows, scratch);
    features::ValueRows(value.From(begin), rows, shape.value_dim, scratch.values);
    const auto run = begin == 0 ? &Product<ByColumn, false>::Run : &Product<ByColumn, true>::Run;
    for (const bool second : {false, true}) {
      run(second ? scratch.cosines : scratch.sines, Pitch(m), 1, scratch.values, columns, rows, m,
          columns, state + (second ? m * columns : 0), columns);
    }
  }
}

void Apply(const HeadShape& shape, HeadRows query, std::int64_t count, const float* state,
           float* output, std::int64_t output_stride, float* memory) {
  const Scratch scratch(shape, memory);
  const std::int64_t columns = shape.columns(), m = shape.num_features, pitch = Pitch(m);
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t rows = Smaller(kBlock, count - begin);
    Features(shape, query.From(begin), rows, scratch);
    Product<ByRow, false>::Run(scratch.sines, pitch, pitch, state, columns, m, rows, columns,
                               scratch.values, columns);
    Product<ByRow, true>::Run(scratch.cosines, pitch, pitch, state + m * columns, columns, m, rows,
                              columns, scratch.values, columns);
    for (std::int64_t i = 0; i < rows; ++i) {
      const float* row = scratch.values + i * columns;
      const float size = __builtin_fabsf(row[shape.value_dim]);
      features::Divide(row, size < shape.least ? shape.least : size, shape.value_dim,
                       output + (begin + i) * output_stride);
    }
  }
}

constexpr Kernels kKernels{.unit_rows = &UnitRows, .summarise = &Summarise, .apply = &Apply};

}  // namespace
}  // namespace attenuator::rfa
