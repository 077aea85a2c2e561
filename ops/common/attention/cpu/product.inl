// Products of whole matrices by register tiles, for any Simd.
#pragma once

#include "ops/common/attention/cpu/tile.inl"

namespace attenuator::attention {
namespace {

// c[r, :] = sum over k of A(r, k) * b[k, :], or added to what is there. Each element is one chain
// over k, whatever tile it falls into.
template <class Order, bool kAdd>
struct Product {
  template <int kRows, int kVectors>
  struct Tile {
    static void Run(const float* a, std::int64_t a_stride, const float* b, std::int64_t b_pitch,
                    std::int64_t depth, float* c, std::int64_t c_pitch) {
      Vector sums[kRows][kVectors];
      MultiplyTile<Order, kRows, kVectors>(a, a_stride, b, b_pitch, depth, sums);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          float* to = c + r * c_pitch + v * Simd::kWidth;
          Simd::Store(to, kAdd ? Simd::Add(Simd::Load(to), sums[r][v]) : sums[r][v]);
        }
      }
    }
  };

  // `rows` by `columns` elements, columns a multiple of Simd::kWidth; from one row of A to the next
  // it is `a_step` floats, and rows of b and c lie their pitch apart.
  static void Run(const float* a, std::int64_t a_stride, std::int64_t a_step, const float* b,
                  std::int64_t b_pitch, std::int64_t depth, std::int64_t rows, std::int64_t columns,
                  float* c, std::int64_t c_pitch) {
    const std::int64_t vectors = columns / Simd::kWidth;
    for (std::int64_t v = 0; v < vectors; v += Simd::kTileVectors) {
      const int across = static_cast<int>(Smaller(Simd::kTileVectors, vectors - v));
      const std::int64_t most = Simd::TileRows(across), column = v * Simd::kWidth;
      for (std::int64_t r = 0; r < rows; r += most) {
        const int down = static_cast<int>(Smaller(most, rows - r));
        TileTable<Tile>::Get(down, across)(a + r * a_step, a_stride, b + column, b_pitch, depth,
                                           c + r * c_pitch + column, c_pitch);
      }
    }
  }
};

}  // namespace
}  // namespace attenuator::attention
