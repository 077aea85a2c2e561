// PerformerAttention's kernels for any Simd.
//
// With x the scaled row and w_i the directions, a key's feature is exp(w_i . x - |x|^2 / 2) and a
// query's exp(w_i . x): what else the published features have, a query's own exp(-|x|^2 / 2) and
// 1 / sqrt(m), is a factor of numerators and denominator alike.
//
// A block of 64 rows at a time: scaled rows, their products with the directions and the values go
// to scratch; then exponents become features and a product of register tiles adds the block to the
// state (keys), or reads it (queries). At 256 features, 64 by 64, directions and features take 64
// KiB each and the state 84 KiB: all of it stays in the second-level cache, and memory traffic is
// one read of each input and one write of the output.
//
// Numerics: a feature's exponents are taken relative to their largest one over the keys so far,
// M_i, behind the state; what is there is scaled when that rises. A query's exponents get M_i back
// and are taken relative to their largest sum. So the denominator is at least 1: of the feature
// where that sum is largest, the query's part is e^0 and the keys' sum has one e^0. No number
// overflows: elements of scaled rows are cut to +-1e18, so that |x|^2 is finite. NaN stays.
//
// Every element is a chain of fused multiply-adds in the order of dimensions, rows or features; it
// is the same on AVX2 and AVX-512.
#include "ops/common/features/cpu/state.inl"
#include "ops/performer/cpu/kernel.h"

namespace attenuator::performer {
namespace {

using attention::ByColumn;
using attention::ByRow;
using attention::Product;
using attention::Smaller;
using attention::Vector;
using features::kLeast;
using features::kLog2E;

constexpr float kLargest = 1e18f;  // of a scaled row's elements

struct Scratch {
  Scratch(const HeadShape& shape, float* memory)
      : phi(memory),
        rows(phi + kBlock * Pitch(shape.num_features)),
        values(rows + kBlock * shape.head_dim),
        factors(values + kBlock * shape.columns()),
        norms(factors + PaddedToVectors(shape.num_features)) {}

  float* phi;      // [rows][Pitch(num_features)]
  float* rows;     // [rows][head_dim]
  float* values;   // [rows][columns]
  float* factors;  // [num_features]
  float* norms;    // [rows]
};

// Scaled rows, and half their squared norms, summed in sixteen lanes whatever the instruction set.
void ScaleRows(HeadRows rows, std::int64_t count, std::int64_t head_dim, float factor,
               const Scratch& scratch) {
  const Floats scale = Set(factor), most = Set(kLargest), least = Set(-kLargest);
  for (std::int64_t i = 0; i < count; ++i) {
    const float* row = rows.data + i * rows.stride;
    float* to = scratch.rows + i * head_dim;
    Floats squares = Zero();
    for (std::int64_t c = 0; c < head_dim; c += 16) {
      const int some = static_cast<int>(Smaller(16, head_dim - c));
      // Max and Min give their second operand where one is NaN.
      const Floats x = Min(most, Max(least, Mul(LoadFirst(row + c, some), scale)));
      StoreFirst(to + c, x, some);
      squares = Fma(x, x, squares);
    }
    scratch.norms[i] = 0.5f * Sum(squares);
  }
}

// phi[i, :] = products of the scaled rows with the directions.
void Project(const HeadShape& shape, std::int64_t count, const Scratch& scratch) {
  Product<ByRow, false>::Run(
      scratch.rows, shape.head_dim, shape.head_dim, shape.directions, shape.pitch, shape.head_dim,
      count, PaddedToVectors(shape.num_features), scratch.phi, Pitch(shape.num_features));
}

inline Vector Power(Vector x) { return Simd::Exp2(x, Simd::Set(kLog2E), Simd::Set(kLeast)); }

// Products become features relative to `maxima`, which rise with them; factors[i] is what sums
// relative to the old ones are multiplied by.
void KeyFeatures(const HeadShape& shape, std::int64_t count, float* maxima,
                 const Scratch& scratch) {
  const std::int64_t columns = PaddedToVectors(shape.num_features);
  const std::int64_t pitch = Pitch(shape.num_features);
  __builtin_memcpy(scratch.factors, maxima, sizeof(float) * columns);
  for (std::int64_t j = 0; j < count; ++j) {
    float* row = scratch.phi + j * pitch;
    const Vector norm = Simd::Set(scratch.norms[j]);
    for (std::int64_t i = 0; i < columns; i += Simd::kWidth) {
      const Vector exponent = Simd::Sub(Simd::Load(row + i), norm);
      Simd::Store(row + i, exponent);
      Simd::Store(maxima + i, Simd::Max(exponent, Simd::Load(maxima + i)));
    }
  }
  for (std::int64_t i = 0; i < columns; i += Simd::kWidth) {
    const Vector old = Simd::Load(scratch.factors + i);
    Simd::Store(scratch.factors + i, Power(Simd::Sub(old, Simd::Load(maxima + i))));
  }
  for (std::int64_t j = 0; j < count; ++j) {
    float* row = scratch.phi + j * pitch;
    for (std::int64_t i = 0; i < columns; i += Simd::kWidth) {
      Simd::Store(row + i, Power(Simd::Sub(Simd::Load(row + i), Simd::Load(maxima + i))));
    }
  }
}

// Row i of the state times factors[i]; after the first blocks hardly any is not 1.
void Rescale(const HeadShape& shape, const float* factors, float* state) {
  const std::int64_t columns = shape.columns();
  for (std::int64_t i = 0; i < shape.num_features; ++i) {
    if (factors[i] == 1.0f) continue;
    const Vector factor = Simd::Set(factors[i]);
    for (std::int64_t c = i * columns; c < (i + 1) * columns; c += Simd::kWidth) {
      Simd::Store(state + c, Simd::Mul(factor, Simd::Load(state + c)));
    }
  }
}

void Summarise(const HeadShape& shape, HeadRows key, HeadRows value, std::int64_t count,
               float* state, float* memory) {
  const Scratch scratch(shape, memory);
  const std::int64_t columns = shape.columns(), m = shape.num_features;
  float* const maxima = state + m * columns;
  for (std::int64_t i = 0; i < PaddedToVectors(m); ++i) maxima[i] = -3e38f;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t rows = Smaller(kBlock, count - begin);
    ScaleRows(key.From(begin), rows, shape.head_dim, shape.key_factor, scratch);
    Project(shape, rows, scratch);
    KeyFeatures(shape, rows, maxima, scratch);
    features::ValueRows(value.From(begin), rows, shape.value_dim, scratch.values);
    const auto run = begin == 0 ? &Product<ByColumn, false>::Run : &Product<ByColumn, true>::Run;
    if (begin > 0) Rescale(shape, scratch.factors, state);
    run(scratch.phi, Pitch(m), 1, scratch.values, columns, rows, m, columns, state, columns);
  }
}

void Merge(const HeadShape& shape, float* state, const float* other) {
  const std::int64_t columns = shape.columns(), m = shape.num_features;
  float* const maxima = state + m * columns;
  const float* const of_other = other + m * columns;
  for (std::int64_t i = 0; i < m; ++i) {
    const float largest = maxima[i] > of_other[i] ? maxima[i] : of_other[i];
    const Vector ours = Power(Simd::Set(maxima[i] - largest));
    const Vector theirs = Power(Simd::Set(of_other[i] - largest));
    maxima[i] = largest;
    for (std::int64_t c = i * columns; c < (i + 1) * columns; c += Simd::kWidth) {
      const Vector rest = Simd::Mul(theirs, Simd::Load(other + c));
      Simd::Store(state + c, Simd::Fma(ours, Simd::Load(state + c), rest));
    }
  }
}

// Products of one query become features relative to the largest of product + maximum.
void QueryFeatures(std::int64_t m, const float* maxima, float* row) {
  Vector largest = Simd::Set(-3e38f);
  for (std::int64_t i = 0; i < m; i += Simd::kWidth) {
    const Vector exponent = Simd::Add(Simd::Load(row + i), Simd::Load(maxima + i));
    Simd::Store(row + i, exponent);
    const Vector own = i + Simd::kWidth <= m ? exponent : Simd::Keep(exponent, 0, m - i - 1);
    largest = Simd::Max(own, largest);
  }
  const Vector all = Simd::Set(Simd::Largest(largest));
  for (std::int64_t i = 0; i < m; i += Simd::kWidth) {
    Simd::Store(row + i, Power(Simd::Sub(Simd::Load(row + i), all)));
  }
}

void Apply(const HeadShape& shape, HeadRows query, std::int64_t count, const float* state,
           float* output, std::int64_t output_stride, float* memory) {
  const Scratch scratch(shape, memory);
  const std::int64_t columns = shape.columns(), m = shape.num_features, pitch = Pitch(m);
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t rows = Smaller(kBlock, count - begin);
    ScaleRows(query.From(begin), rows, shape.head_dim, shape.query_factor, scratch);
    Project(shape, rows, scratch);
    for (std::int64_t i = 0; i < rows; ++i) {
      QueryFeatures(m, state + m * columns, scratch.phi + i * pitch);
    }
    Product<ByRow, false>::Run(scratch.phi, pitch, pitch, state, columns, m, rows, columns,
                               scratch.values, columns);
    for (std::int64_t i = 0; i < rows; ++i) {
      const float* row = scratch.values + i * columns;
      features::Divide(row, row[shape.value_dim], shape.value_dim,
                       output + (begin + i) * output_stride);
    }
  }
}

constexpr Kernels kKernels{.summarise = &Summarise, .merge = &Merge, .apply = &Apply};

}  // namespace
}  // namespace attenuator::performer
