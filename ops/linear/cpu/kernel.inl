// LinearAttention's kernels for any Simd.
//
// A block of 64 rows at a time: features of the keys (or queries) go to scratch, and values beside
// them, padded to whole registers; then a product of register tiles. Memory traffic is one read of
// each input and one write of the output; the state (20 KiB at 64 by 64) stays in the cache. Every
// element of the state is a chain of fused multiply-adds over a block's rows, added to those of
// the blocks before; every numerator is a chain over head_dim. No element's chain depends on the
// tile that it falls into.
#include "ops/common/features/cpu/state.inl"
#include "ops/linear/cpu/kernel.h"

namespace attenuator::linear {
namespace {

using attention::ByColumn;
using attention::ByRow;
using attention::Product;
using attention::Smaller;
using attention::Vector;
using features::kLeast;
using features::kLog2E;

// elu(x) + 1 = max(x, 0) + e^min(x, 0). Max and Min give their second operand where one is NaN.
inline Vector Features(Vector x) {
  const Vector zero = Simd::Zero();
  const Vector power = Simd::Exp2(Simd::Min(zero, x), Simd::Set(kLog2E), Simd::Set(kLeast));
  return Simd::Add(Simd::Max(zero, x), power);
}

void FeatureRows(HeadRows rows, std::int64_t count, std::int64_t head_dim, float* features) {
  for (std::int64_t i = 0; i < count; ++i) {
    const float* row = rows.data + i * rows.stride;
    float* to = features + i * head_dim;
    std::int64_t c = 0;
    for (; c + Simd::kWidth <= head_dim; c += Simd::kWidth) {
      Simd::Store(to + c, Features(Simd::Load(row + c)));
    }
    if (c < head_dim) {
      const std::int64_t remaining = head_dim - c;
      Simd::StoreFirst(to + c, Features(Simd::LoadFirst(row + c, remaining)), remaining);
    }
  }
}

void Summarise(const HeadShape& shape, HeadRows key, HeadRows value, std::int64_t count,
               float* state, float* scratch) {
  const std::int64_t head_dim = shape.head_dim, columns = StateColumns(shape.value_dim);
  float* phi = scratch;
  float* values = scratch + kBlock * head_dim;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t rows = Smaller(kBlock, count - begin);
    FeatureRows(key.From(begin), rows, head_dim, phi);
    features::ValueRows(value.From(begin), rows, shape.value_dim, values);
    const auto run = begin == 0 ? &Product<ByColumn, false>::Run : &Product<ByColumn, true>::Run;
    run(phi, head_dim, 1, values, columns, rows, head_dim, columns, state, columns);
  }
}

void Apply(const HeadShape& shape, HeadRows query, std::int64_t count, const float* state,
           float* output, std::int64_t output_stride, float* scratch) {
  const std::int64_t head_dim = shape.head_dim, columns = StateColumns(shape.value_dim);
  float* phi = scratch;
  float* quotients = scratch + kBlock * head_dim;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t rows = Smaller(kBlock, count - begin);
    FeatureRows(query.From(begin), rows, head_dim, phi);
    Product<ByRow, false>::Run(phi, head_dim, head_dim, state, columns, head_dim, rows, columns,
                               quotients, columns);
    for (std::int64_t i = 0; i < rows; ++i) {
      const float* row = quotients + i * columns;
      features::Divide(row, row[shape.value_dim], shape.value_dim,
                       output + (begin + i) * output_stride);
    }
  }
}

constexpr Kernels kKernels{.summarise = &Summarise, .apply = &Apply};

}  // namespace
}  // namespace attenuator::linear
