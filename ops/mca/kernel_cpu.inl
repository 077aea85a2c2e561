// Body of kernel_cpu_avx2.cc and kernel_cpu_avx512.cc, which define Simd first.
#include "ops/mca/kernel.h"

namespace attenuator {
namespace {

using Vector = Simd::Vector;
constexpr std::int64_t kWidth = Simd::kWidth;

// kRows x (kVectors registers) of the result held in registers over the whole depth. The weight is
// read in place from its row-major form: six rows by 64 columns need ten loads for 24 fused
// multiply-adds, so that even a weight in the L2 cache keeps the multipliers busy.
template <int kRows, int kVectors>
void ExactTile(const float* const* rows, std::int64_t depth, const float* weight,
               std::int64_t padded, const float* base, float* const* out, std::int64_t column) {
  Vector sums[kRows][kVectors];
  const float* row[kRows];
  for (int i = 0; i < kRows; ++i) {
    row[i] = rows[i];
    for (int v = 0; v < kVectors; ++v) sums[i][v] = Simd::Load(base + column + v * kWidth);
  }
  const float* w = weight + column;
  for (std::int64_t k = 0; k < depth; ++k, w += padded) {
    Vector b[kVectors];
    for (int v = 0; v < kVectors; ++v) b[v] = Simd::Load(w + v * kWidth);
    for (int i = 0; i < kRows; ++i) {
      const Vector a = Simd::Set(row[i][k]);
      for (int v = 0; v < kVectors; ++v) sums[i][v] = Simd::Fma(a, b[v], sums[i][v]);
    }
  }
  for (int i = 0; i < kRows; ++i) {
    for (int v = 0; v < kVectors; ++v) Simd::Store(out[i] + column + v * kWidth, sums[i][v]);
  }
}

// As ExactTile, over listed columns and with the centre taken off: subtracting here costs nothing
// where additions have ports of their own, and no centred copy of the input is needed.
template <int kRows, int kVectors>
void SampledTile(const float* const* rows, const SampledColumns& columns, const float* centre,
                 const PackedHead& head, const float* base, float* const* out,
                 std::int64_t column) {
  Vector sums[kRows][kVectors];
  const float* row[kRows];
  for (int i = 0; i < kRows; ++i) {
    row[i] = rows[i];
    for (int v = 0; v < kVectors; ++v) sums[i][v] = Simd::Zero();
  }
  const std::int64_t padded = head.padded;
  const auto add = [&](const std::int32_t* list, std::int64_t count, const float* weight) {
    for (std::int64_t t = 0; t < count; ++t) {
      const std::int64_t k = list[t];
      const float* w = weight + k * padded + column;
      const Vector c = Simd::Set(centre[k]);
      Vector b[kVectors];
      for (int v = 0; v < kVectors; ++v) b[v] = Simd::Load(w + v * kWidth);
      for (int i = 0; i < kRows; ++i) {
        const Vector a = Simd::Sub(Simd::Set(row[i][k]), c);
        for (int v = 0; v < kVectors; ++v) sums[i][v] = Simd::Fma(a, b[v], sums[i][v]);
      }
    }
  };
  if (columns.num_certain > 0) {
    add(columns.certain, columns.num_certain, head.weight);
    const Vector r = Simd::Set(columns.r);
    for (int i = 0; i < kRows; ++i) {
      for (int v = 0; v < kVectors; ++v) sums[i][v] = Simd::Mul(sums[i][v], r);
    }
  }
  add(columns.partial, columns.num_partial, head.scaled);
  const Vector inverse_r = Simd::Set(1.0f / columns.r);
  for (int i = 0; i < kRows; ++i) {
    for (int v = 0; v < kVectors; ++v) {
      const Vector b = Simd::Load(base + column + v * kWidth);
      Simd::Store(out[i] + column + v * kWidth, Simd::Fma(sums[i][v], inverse_r, b));
    }
  }
}

// All rows of a strip of columns: tiles of kRows, then of fewer.
template <int kRows, int kVectors>
void ExactStrip(const float* const* rows, std::int64_t count, std::int64_t depth,
                const PackedHead& head, const float* base, float* const* out, std::int64_t column) {
  std::int64_t i = 0;
  for (; i + kRows <= count; i += kRows) {
    ExactTile<kRows, kVectors>(rows + i, depth, head.weight, head.padded, base, out + i, column);
  }
  if constexpr (kRows > 1) {
    ExactStrip<kRows / 2, kVectors>(rows + i, count - i, depth, head, base, out + i, column);
  }
}

template <int kVectors>
void SampledRows(const float* const* rows, int count, const SampledColumns& columns,
                 const float* centre, const PackedHead& head, const float* base, float* const* out,
                 std::int64_t column) {
  static_assert(kSampleGroup == 6);
  switch (count) {
    case 1:
      return SampledTile<1, kVectors>(rows, columns, centre, head, base, out, column);
    case 2:
      return SampledTile<2, kVectors>(rows, columns, centre, head, base, out, column);
    case 3:
      return SampledTile<3, kVectors>(rows, columns, centre, head, base, out, column);
    case 4:
      return SampledTile<4, kVectors>(rows, columns, centre, head, base, out, column);
    case 5:
      return SampledTile<5, kVectors>(rows, columns, centre, head, base, out, column);
    default:
      return SampledTile<6, kVectors>(rows, columns, centre, head, base, out, column);
  }
}

// Runs body.template operator()<vectors>(column) over strips of at most kTileVectors registers.
template <class Body>
void Strips(std::int64_t padded, const Body& body) {
  for (std::int64_t column = 0; column < padded;) {
    const std::int64_t left = (padded - column) / kWidth;
    if constexpr (Simd::kTileVectors == 4) {
      if (left >= 4) {
        body.template operator()<4>(column);
        column += 4 * kWidth;
        continue;
      }
      if (left == 3) {
        body.template operator()<3>(column);
        column += 3 * kWidth;
        continue;
      }
    }
    if (left >= 2) {
      body.template operator()<2>(column);
      column += 2 * kWidth;
    } else {
      body.template operator()<1>(column);
      column += kWidth;
    }
  }
}

void Exact(const float* const* rows, std::int64_t count, std::int64_t depth, const PackedHead& head,
           const float* base, float* const* out) {
  Strips(head.padded, [&]<int kVectors>(std::int64_t column) {
    ExactStrip<Simd::TileRows(kVectors), kVectors>(rows, count, depth, head, base, out, column);
  });
}

void Sampled(const float* const* rows, int count, const SampledColumns& columns,
             const float* centre, const PackedHead& head, const float* base, float* const* out) {
  Strips(head.padded, [&]<int kVectors>(std::int64_t column) {
    SampledRows<kVectors>(rows, count, columns, centre, head, base, out, column);
  });
}

bool Finite(const float* values, std::int64_t count) {
  const Vector zero = Simd::Zero();
  Vector a = zero, b = zero;  // 0 * x is NaN where x is not finite, and stays
  std::int64_t i = 0;
  for (; i + 2 * kWidth <= count; i += 2 * kWidth) {
    a = Simd::Fma(zero, Simd::Load(values + i), a);
    b = Simd::Fma(zero, Simd::Load(values + i + kWidth), b);
  }
  float sum = Simd::Sum(Simd::Add(a, b));
  for (; i < count; ++i) sum += 0.0f * values[i];
  return sum == 0.0f;
}

constexpr std::int64_t kSumRows = 64;

template <int kVectors>
void SumStrip(const float* x, std::int64_t rows, std::int64_t columns, double* sums) {
  Vector strip[kVectors];
  for (int v = 0; v < kVectors; ++v) strip[v] = Simd::Zero();
  for (std::int64_t i = 0; i < rows; ++i, x += columns) {
    for (int v = 0; v < kVectors; ++v) {
      strip[v] = Simd::Add(strip[v], Simd::Load(x + v * kWidth));
    }
  }
  float lanes[kVectors * kWidth];
  for (int v = 0; v < kVectors; ++v) Simd::Store(lanes + v * kWidth, strip[v]);
  for (int i = 0; i < kVectors * kWidth; ++i) sums[i] += lanes[i];
}

void ColumnSums(const float* x, std::int64_t rows, std::int64_t columns, double* sums) {
  for (std::int64_t c = 0; c < columns; ++c) sums[c] = 0;
  for (std::int64_t begin = 0; begin < rows; begin += kSumRows) {
    const std::int64_t count = rows - begin < kSumRows ? rows - begin : kSumRows;
    const float* block = x + begin * columns;
    std::int64_t c = 0;
    for (; c + 4 * kWidth <= columns; c += 4 * kWidth) {
      SumStrip<4>(block + c, count, columns, sums + c);
    }
    for (; c + kWidth <= columns; c += kWidth) {
      SumStrip<1>(block + c, count, columns, sums + c);
    }
    for (; c < columns; ++c) {
      float sum = 0;
      for (std::int64_t i = 0; i < count; ++i) sum += block[i * columns + c];
      sums[c] += sum;
    }
  }
}

void RowNorms(const float* x, const float* centre, std::int64_t rows, std::int64_t columns,
              float* norms, float* centred) {
  for (std::int64_t j = 0; j < rows; ++j, x += columns) {
    Vector a = Simd::Zero(), b = a, c = a, d = a;
    std::int64_t k = 0;
    for (; k + 2 * kWidth <= columns; k += 2 * kWidth) {
      const Vector p = Simd::Load(x + k), q = Simd::Load(x + k + kWidth);
      const Vector e = Simd::Sub(p, Simd::Load(centre + k));
      const Vector f = Simd::Sub(q, Simd::Load(centre + k + kWidth));
      a = Simd::Fma(p, p, a);
      b = Simd::Fma(q, q, b);
      c = Simd::Fma(e, e, c);
      d = Simd::Fma(f, f, d);
    }
    float whole = Simd::Sum(Simd::Add(a, b)), rest = Simd::Sum(Simd::Add(c, d));
    for (; k < columns; ++k) {
      const float e = x[k] - centre[k];
      whole += x[k] * x[k];
      rest += e * e;
    }
    norms[j] = __builtin_sqrtf(whole);
    centred[j] = __builtin_sqrtf(rest);
  }
}

}  // namespace
}  // namespace attenuator
