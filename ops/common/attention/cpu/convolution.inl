// A depthwise convolution of values along a sequence, added to rows of output, for any Simd.
//
// A tile of rows by two registers of columns stays in registers while the values that its rows see
// go by, so that a value is loaded once for all of them. Each element is one chain of fused
// multiply-adds in the order of the taps, begun at the output's own value, whatever the tile.
#pragma once

#include "ops/common/attention/cpu/tile.inl"

namespace attenuator::attention {
namespace {

// One head's values [count, columns] of a sequence, rows `stride` floats apart, and its kernel.
struct Convolution {
  const float* values;
  std::int64_t stride;
  std::int64_t count;
  std::int64_t columns;
  const float* weights;
  std::int64_t taps;  // odd
};

// Rows of a tile: with two registers of columns each, 16 of 32 registers, or 8 of 16.
constexpr int kConvolutionRows = Simd::kTileVectors == 4 ? 8 : 4;

// Rows [first, first + kRows) and kVectors registers of columns, the last of them cut off at
// `columns`.
template <int kRows, int kVectors>
inline void ConvolveTile(const Convolution& of, std::int64_t first, std::int64_t columns,
                         const float* values, float* output, std::int64_t stride) {
  const std::int64_t reach = of.taps / 2;
  const auto load = [&](const float* p, int v) {
    const std::int64_t left = columns - v * Simd::kWidth;
    return left >= Simd::kWidth ? Simd::Load(p + v * Simd::kWidth)
                                : Simd::LoadFirst(p + v * Simd::kWidth, left);
  };
  Vector sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) sums[r][v] = load(output + r * stride, v);
  }
  const auto add = [&](int r, std::int64_t begin, std::int64_t end) {
    for (std::int64_t j = begin; j < end; ++j) {
      const Vector weight = Simd::Set(of.weights[j - first - r + reach]);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        sums[r][v] = Simd::Fma(weight, load(values + j * of.stride, v), sums[r][v]);
      }
    }
  };
  // All rows see [shared, shared_end); each sees some values before and behind.
  const std::int64_t shared = Larger(first + kRows - 1 - reach, 0);
  const std::int64_t shared_end = Larger(Smaller(first + reach + 1, of.count), shared);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const std::int64_t end = Smaller(first + r + reach + 1, of.count);
    add(r, Larger(first + r - reach, 0), Smaller(shared, end));
  }
  for (std::int64_t j = shared; j < shared_end; ++j) {
    const float* weights = of.weights + (j - first + reach);
    Vector line[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) line[v] = load(values + j * of.stride, v);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vector weight = Simd::Set(weights[-r]);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sums[r][v] = Simd::Fma(weight, line[v], sums[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    add(r, shared_end, Smaller(first + r + reach + 1, of.count));
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      float* to = output + r * stride + v * Simd::kWidth;
      const std::int64_t left = columns - v * Simd::kWidth;
      if (left >= Simd::kWidth) {
        Simd::Store(to, sums[r][v]);
      } else {
        Simd::StoreFirst(to, sums[r][v], left);
      }
    }
  }
}

template <int kRows>
inline void ConvolveRows(const Convolution& of, std::int64_t first, float* output,
                         std::int64_t stride) {
  for (std::int64_t c = 0; c < of.columns; c += 2 * Simd::kWidth) {
    const std::int64_t left = of.columns - c;
    if (left > Simd::kWidth) {
      ConvolveTile<kRows, 2>(of, first, left, of.values + c, output + c, stride);
    } else {
      ConvolveTile<kRows, 1>(of, first, left, of.values + c, output + c, stride);
    }
  }
}

// output[i, c] += sum over j of weights[j - (first + i) + taps / 2] * values[j, c], for the values
// that there are; `output` is where row `first` goes.
void AddConvolution(const Convolution& of, std::int64_t first, std::int64_t rows, float* output,
                    std::int64_t stride) {
  std::int64_t i = 0;
  for (; i + kConvolutionRows <= rows; i += kConvolutionRows) {
    ConvolveRows<kConvolutionRows>(of, first + i, output + i * stride, stride);
  }
  for (; i < rows; ++i) ConvolveRows<1>(of, first + i, output + i * stride, stride);
}

}  // namespace
}  // namespace attenuator::attention
