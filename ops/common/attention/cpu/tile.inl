// Register tiles of matrix products, for any Simd: C[r, :] = sum over k of A(r, k) * B[k, :], where
// A is broadcast one float at a time and B is read as vectors. Each element is one chain of fused
// multiply-adds in the order of k, whatever the tile's shape, so that how rows are grouped into
// tiles does not change a bit.
#pragma once

#include <utility>

namespace attenuator::attention {
namespace {

using Vector = Simd::Vector;

// A by rows: A(r, k) = a[r * stride + k].
struct ByRow {
  template <int kRows>
  struct Rows {
    // A base for every third row: x86 addresses base, base + stride and base + 2 * stride.
    const float* base[(kRows + 2) / 3];
    std::int64_t stride;

    Rows(const float* a, std::int64_t a_stride) : stride(a_stride) {
#pragma GCC unroll 8
      for (int i = 0; i < (kRows + 2) / 3; ++i) base[i] = a + 3 * i * stride;
    }
    float At(int r, std::int64_t k) const { return base[r / 3][(r % 3) * stride + k]; }
  };
};

// A by columns: A(r, k) = a[k * stride + r].
struct ByColumn {
  template <int kRows>
  struct Rows {
    const float* a;
    std::int64_t stride;

    Rows(const float* base, std::int64_t a_stride) : a(base), stride(a_stride) {}
    float At(int r, std::int64_t k) const { return a[k * stride + r]; }
  };
};

template <class Order, int kRows, int kVectors>
[[gnu::always_inline]] inline void MultiplyTile(const float* a, std::int64_t a_stride,
                                                const float* b, std::int64_t b_stride,
                                                std::int64_t depth,
                                                Vector (&sums)[kRows][kVectors]) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sums[r][v] = Simd::Zero();
  }
  const typename Order::template Rows<kRows> rows(a, a_stride);
  for (std::int64_t k = 0; k < depth; ++k) {
    Vector line[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) line[v] = Simd::Load(b + k * b_stride + v * Simd::kWidth);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Vector x = Simd::Set(rows.At(r, k));
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[r][v] = Simd::Fma(x, line[v], sums[r][v]);
    }
  }
}

// Calls Tile<rows, vectors>::Run for run-time rows in [1, kRows] and vectors in [1, kTileVectors].
template <template <int, int> class Tile>
struct TileTable {
  using Function = decltype(&Tile<1, 1>::Run);

  template <int kVectors, int... kRows>
  static Function Row(int rows, std::integer_sequence<int, kRows...>) {
    static constexpr Function kTable[] = {&Tile<kRows + 1, kVectors>::Run...};
    return kTable[rows - 1];
  }
  template <int kVectors>
  static Function Get(int rows) {
    return Row<kVectors>(rows, std::make_integer_sequence<int, Simd::TileRows(kVectors)>{});
  }
  static Function Get(int rows, int vectors) {
    if constexpr (Simd::kTileVectors > 2) {
      if (vectors == 4) return Get<4>(rows);
      if (vectors == 3) return Get<3>(rows);
    }
    return vectors == 2 ? Get<2>(rows) : Get<1>(rows);
  }
};

inline std::int64_t Smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
inline std::int64_t Larger(std::int64_t a, std::int64_t b) { return a > b ? a : b; }

// Scores, transposed: s[r, :] = sum over k of key[r, k] * query[k, :]. Rows of queries and scores
// lie `pitch` floats apart.
template <int kRows, int kVectors>
struct ScoreTile {
  static void Run(const float* key, std::int64_t key_stride, const float* query, std::int64_t pitch,
                  std::int64_t depth, float* s) {
    Vector sums[kRows][kVectors];
    MultiplyTile<ByRow, kRows, kVectors>(key, key_stride, query, pitch, depth, sums);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        Simd::Store(s + r * pitch + v * Simd::kWidth, sums[r][v]);
      }
    }
  }
};

// Where a tile of attention output goes: kept (scaled by `old_factor` and added to) until the last
// key block, then written out, scaled by `new_factor`.
struct Sink {
  float* kept;
  std::int64_t kept_stride;
  const float* old_factor;  // one a row; null: nothing is kept yet
  const float* new_factor;  // one a row; null: not the last block
  float* output;
  std::int64_t output_stride;
  std::int64_t output_columns;  // from `output` on
};

// y[r, :] = sum over k of p[k, r] * value[k, :], into a sink; only the last vector may be cut off.
template <int kRows, int kVectors>
struct ValueTile {
  static void Run(const float* p, std::int64_t p_stride, const float* value,
                  std::int64_t value_stride, std::int64_t depth, const Sink& sink) {
    Vector sums[kRows][kVectors];
    MultiplyTile<ByColumn, kRows, kVectors>(p, p_stride, value, value_stride, depth, sums);
    if (sink.old_factor != nullptr) {
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const float* kept = sink.kept + r * sink.kept_stride;
        const Vector factor = Simd::Set(sink.old_factor[r]);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          sums[r][v] = Simd::Fma(Simd::Load(kept + v * Simd::kWidth), factor, sums[r][v]);
        }
      }
    }
    if (sink.new_factor == nullptr) {
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        float* kept = sink.kept + r * sink.kept_stride;
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) Simd::Store(kept + v * Simd::kWidth, sums[r][v]);
      }
      return;
    }
    // One branch for the whole tile: a branch for each vector would slow short sequences down.
    if (sink.output_columns >= kVectors * Simd::kWidth) {
      Write<true>(sums, sink);
    } else {
      Write<false>(sums, sink);
    }
  }

  template <bool kWhole>
  [[gnu::always_inline]] static void Write(const Vector (&sums)[kRows][kVectors],
                                           const Sink& sink) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      float* output = sink.output + r * sink.output_stride;
      const Vector factor = Simd::Set(sink.new_factor[r]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const Vector y = Simd::Mul(sums[r][v], factor);
        if (kWhole || v + 1 < kVectors) {
          Simd::Store(output + v * Simd::kWidth, y);
        } else {
          Simd::StoreFirst(output + v * Simd::kWidth, y, sink.output_columns - v * Simd::kWidth);
        }
      }
    }
  }
};

}  // namespace
}  // namespace attenuator::attention
