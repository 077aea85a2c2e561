// NystromAttention's kernels for any Simd.
//
// Segment means read queries and keys once. The inverse of a head's landmarks is four products of
// square matrices a step, in register tiles over matrices that stay in the second-level cache (five
// of 16 KiB at 64 landmarks, of 1 MiB at 512). Every element of a product is one chain of fused
// multiply-adds in the order of the inner index, whatever its tile; means are sums in the order of
// the tokens and one division. One task owns a head's landmarks, so nothing here depends on
// threads.
//
// Numerics: float32. Where landmarks are alike, directions of the matrix are all but missing, and a
// step lets what rounding left of them grow by up to 13/4: README.md says what error that gives.
#include "ops/common/attention/cpu/convolution.inl"
#include "ops/common/attention/cpu/tile.inl"
#include "ops/nystrom/cpu/kernel.h"

namespace attenuator::nystrom {
namespace {

using attention::ByRow;
using attention::MultiplyTile;
using attention::Smaller;
using attention::TileTable;
using attention::Vector;

// The mean of `count` rows, zeros behind it up to a whole pitch.
void MeanRow(const float* rows, std::int64_t stride, std::int64_t count, std::int64_t columns,
             float* mean) {
  const Vector divisor = Simd::Set(static_cast<float>(count));
  for (std::int64_t c = 0; c < PaddedToVectors(columns); c += Simd::kWidth) {
    const std::int64_t left = Smaller(columns - c, Simd::kWidth);
    Vector sum = Simd::Zero();
    for (std::int64_t i = 0; i < count && left > 0; ++i) {
      sum = Simd::Add(sum, Simd::LoadFirst(rows + i * stride + c, left));
    }
    Simd::Store(mean + c, Simd::Div(sum, divisor));
  }
}

// tokens / landmarks rows a segment; the last tokens % landmarks of them have one more.
void Means(HeadRows rows, std::int64_t tokens, std::int64_t columns, std::int64_t landmarks,
           float* means) {
  const std::int64_t size = tokens / landmarks, shorter = landmarks - tokens % landmarks;
  for (std::int64_t s = 0; s < landmarks; ++s) {
    const std::int64_t count = size + (s < shorter ? 0 : 1);
    MeanRow(rows.data, rows.stride, count, columns, means + s * PaddedToVectors(columns));
    rows.data += count * rows.stride;
  }
}

float LargestColumnSum(const float* matrix, std::int64_t size) {
  Vector largest = Simd::Zero();
  for (std::int64_t c = 0; c < size; c += Simd::kWidth) {
    Vector sum = Simd::Zero();
    for (std::int64_t r = 0; r < size; ++r) {
      sum = Simd::Add(sum, Simd::Load(matrix + r * PaddedToVectors(size) + c));
    }
    largest = Simd::Max(sum, largest);
  }
  return Simd::Largest(largest);
}

// c[r, :] = factor * sum over k of a[r, k] * b[k, :].
template <int kRows, int kVectors>
struct Tile {
  static void Run(const float* a, std::int64_t a_pitch, const float* b, std::int64_t pitch,
                  std::int64_t depth, float factor, float* c) {
    Vector sums[kRows][kVectors];
    MultiplyTile<ByRow, kRows, kVectors>(a, a_pitch, b, pitch, depth, sums);
    const Vector all = Simd::Set(factor);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        Simd::Store(c + r * pitch + v * Simd::kWidth, Simd::Mul(sums[r][v], all));
      }
    }
  }
};

// c [size, columns] = factor * a [size, size] * b [size, columns].
void Product(float factor, const float* a, std::int64_t size, const float* b, std::int64_t columns,
             float* c) {
  const std::int64_t pitch = PaddedToVectors(columns), vectors = pitch / Simd::kWidth;
  for (std::int64_t v = 0; v < vectors; v += Simd::kTileVectors) {
    const int across = static_cast<int>(Smaller(Simd::kTileVectors, vectors - v));
    const std::int64_t most = Simd::TileRows(across), column = v * Simd::kWidth;
    for (std::int64_t r = 0; r < size; r += most) {
      const int down = static_cast<int>(Smaller(most, size - r));
      TileTable<Tile>::Get(down, across)(a + r * PaddedToVectors(size), PaddedToVectors(size),
                                         b + column, pitch, size, factor, c + r * pitch + column);
    }
  }
}

void AddDiagonal(float* matrix, std::int64_t size, float value) {
  for (std::int64_t i = 0; i < size; ++i) matrix[i * PaddedToVectors(size) + i] += value;
}

// to = from^T / divisor.
void TransposeOver(const float* from, std::int64_t size, float divisor, float* to) {
  const std::int64_t pitch = PaddedToVectors(size);
  for (std::int64_t r = 0; r < size; ++r) {
    for (std::int64_t c = 0; c < size; ++c) to[r * pitch + c] = from[c * pitch + r] / divisor;
    for (std::int64_t c = size; c < pitch; ++c) to[r * pitch + c] = 0.0f;
  }
}

// The paper's equation 11: Z <- Z (13 I - AZ (15 I - AZ (7 I - AZ))) / 4, from A^T / divisor on.
const float* Inverse(const float* matrix, std::int64_t size, float divisor, std::int64_t iterations,
                     float* scratch) {
  const std::int64_t floats = MatrixFloats(size, size);
  float *z = scratch, *az = z + floats, *inner = az + floats, *outer = inner + floats;
  TransposeOver(matrix, size, divisor, z);
  for (std::int64_t i = 0; i < iterations; ++i) {
    Product(1.0f, matrix, size, z, size, az);
    for (std::int64_t c = 0; c < floats; c += Simd::kWidth) {
      Simd::Store(inner + c, Simd::Sub(Simd::Zero(), Simd::Load(az + c)));
    }
    AddDiagonal(inner, size, 7.0f);
    Product(-1.0f, az, size, inner, size, outer);
    AddDiagonal(outer, size, 15.0f);
    Product(-1.0f, az, size, outer, size, inner);
    AddDiagonal(inner, size, 13.0f);
    Product(0.25f, z, size, inner, size, az);
    float* const next = az;
    az = z;
    z = next;
  }
  return z;
}

void Multiply(const float* left, std::int64_t size, const float* right, std::int64_t columns,
              float* product) {
  Product(1.0f, left, size, right, columns, product);
}

void Convolve(HeadRows values, std::int64_t count, std::int64_t columns, const float* weights,
              std::int64_t taps, std::int64_t first, std::int64_t rows, float* output,
              std::int64_t stride) {
  attention::AddConvolution({.values = values.data,
                             .stride = values.stride,
                             .count = count,
                             .columns = columns,
                             .weights = weights,
                             .taps = taps},
                            first, rows, output, stride);
}

constexpr Kernels kKernels{.means = &Means,
                           .largest_column_sum = &LargestColumnSum,
                           .inverse = &Inverse,
                           .multiply = &Multiply,
                           .convolve = &Convolve};

}  // namespace
}  // namespace attenuator::nystrom
