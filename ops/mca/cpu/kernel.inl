// Body of kernel_avx2.cc and kernel_avx512.cc, which define Simd first.
#include "ops/common/philox_lanes.h"
#include "ops/mca/cpu/kernel.h"

namespace attenuator::mca {
namespace {

using Vector = Simd::Vector;
constexpr std::int64_t kWidth = Simd::kWidth;

// The first tile of a strip prefetches the weight this many rows ahead: it may not be in this
// core's caches yet.
constexpr std::int64_t kAhead = 16;

// kRows x (kVectors registers) of the result held in registers over the whole depth. The weight is
// read in place from its row-major form: six rows by 64 columns need ten loads for 24 fused
// multiply-adds, so that even a weight in the L2 cache keeps the multipliers busy.
template <int kRows, int kVectors, bool kFirst>
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
    for (int v = 0; v < kVectors; ++v) {
      b[v] = Simd::Load(w + v * kWidth);
      if constexpr (kFirst) __builtin_prefetch(w + kAhead * padded + v * kWidth);
    }
    for (int i = 0; i < kRows; ++i) {
      const Vector a = Simd::Set(row[i][k]);
      for (int v = 0; v < kVectors; ++v) sums[i][v] = Simd::Fma(a, b[v], sums[i][v]);
    }
  }
  for (int i = 0; i < kRows; ++i) {
    for (int v = 0; v < kVectors; ++v) Simd::Store(out[i] + column + v * kWidth, sums[i][v]);
  }
}

// sums[i] += sum over the listed columns k of (row[i][k] - centre[k]) * weight[k].
template <int kRows, int kVectors>
inline __attribute__((always_inline)) void AddColumns(Vector (&sums)[kRows][kVectors],
                                                      const float* const (&row)[kRows],
                                                      const std::int32_t* list, std::int64_t count,
                                                      const float* centre, const float* weight,
                                                      std::int64_t padded) {
  for (const std::int32_t* const end = list + count; list != end; ++list) {
    const std::int64_t k = *list;
    const float* w = weight + k * padded;
    asm("" : "+r"(w));  // one pointer and constant offsets, not a register for each offset
    // The empty asm hides from the compiler that c is a broadcast. Otherwise it subtracts scalars
    // and broadcasts the difference from a register, which occupies a port of the multipliers.
    Vector c = Simd::Set(centre[k]);
    asm("" : "+v"(c));
    Vector b[kVectors];
    for (int v = 0; v < kVectors; ++v) b[v] = Simd::Load(w + v * kWidth);
    for (int i = 0; i < kRows; ++i) {
      const Vector a = Simd::Sub(Simd::Set(row[i][k]), c);
      for (int v = 0; v < kVectors; ++v) sums[i][v] = Simd::Fma(a, b[v], sums[i][v]);
    }
  }
}

// As ExactTile, over listed columns of rows minus the centre. Subtracting here avoids a centred
// copy of the input, and is free on processors whose additions have ports of their own.
template <int kRows, int kVectors, bool kCertain>
void SampledTile(const float* const* rows, const SampledColumns& columns, const float* centre,
                 const PackedHead& head, const float* base, float* const* out,
                 std::int64_t column) {
  Vector sums[kRows][kVectors];
  const float* row[kRows];
  for (int i = 0; i < kRows; ++i) {
    row[i] = rows[i];
    for (int v = 0; v < kVectors; ++v) sums[i][v] = Simd::Zero();
  }
  if constexpr (kCertain) {
    AddColumns(sums, row, columns.certain, columns.num_certain, centre, head.weight + column,
               head.padded);
    const Vector r = Simd::Set(columns.r);
    for (int i = 0; i < kRows; ++i) {
      for (int v = 0; v < kVectors; ++v) sums[i][v] = Simd::Mul(sums[i][v], r);
    }
  }
  AddColumns(sums, row, columns.partial, columns.num_partial, centre, head.scaled + column,
             head.padded);
  const Vector inverse_r = Simd::Set(1.0f / columns.r);
  for (int i = 0; i < kRows; ++i) {
    for (int v = 0; v < kVectors; ++v) {
      const Vector b = Simd::Load(base + column + v * kWidth);
      Simd::Store(out[i] + column + v * kWidth, Simd::Fma(sums[i][v], inverse_r, b));
    }
  }
}

// Fewer than a tile's rows.
template <int kRows, int kVectors, bool kFirst>
void ExactRest(const float* const* rows, std::int64_t count, std::int64_t depth,
               const PackedHead& head, const float* base, float* const* out, std::int64_t column) {
  if constexpr (kRows > 0) {
    if (count >= kRows) {
      ExactTile<kRows, kVectors, kFirst>(rows, depth, head.weight, head.padded, base, out, column);
      rows += kRows;
      out += kRows;
      count -= kRows;
    }
    if (count > 0) {
      constexpr int kNext = kRows > 6 ? 6 : kRows - 1;
      ExactRest<kNext, kVectors, kFirst>(rows, count, depth, head, base, out, column);
    }
  }
}

// All rows of a strip of columns.
template <int kRows, int kVectors>
void ExactStrip(const float* const* rows, std::int64_t count, std::int64_t depth,
                const PackedHead& head, const float* base, float* const* out, std::int64_t column) {
  const auto tile = [&]<bool kFirst>(std::int64_t i) {
    ExactTile<kRows, kVectors, kFirst>(rows + i, depth, head.weight, head.padded, base, out + i,
                                       column);
  };
  if (count < kRows) {
    return ExactRest<kRows - 1, kVectors, true>(rows, count, depth, head, base, out, column);
  }
  tile.template operator()<true>(0);
  std::int64_t i = kRows;
  for (; i + kRows <= count; i += kRows) tile.template operator()<false>(i);
  ExactRest<kRows - 1, kVectors, false>(rows + i, count - i, depth, head, base, out + i, column);
}

template <int kRows, int kVectors>
void SampledRows(const float* const* rows, int count, const SampledColumns& columns,
                 const float* centre, const PackedHead& head, const float* base, float* const* out,
                 std::int64_t column) {
  if constexpr (kRows > 1) {
    if (count < kRows) {
      return SampledRows<kRows - 1, kVectors>(rows, count, columns, centre, head, base, out,
                                              column);
    }
  }
  if (columns.num_certain > 0) {
    SampledTile<kRows, kVectors, true>(rows, columns, centre, head, base, out, column);
  } else {
    SampledTile<kRows, kVectors, false>(rows, columns, centre, head, base, out, column);
  }
}

// Runs body.template operator()<vectors>(column) over strips of at most kTileVectors registers.
template <class Body>
void Strips(std::int64_t padded, const Body& body) {
  for (std::int64_t column = 0; column < padded;) {
    const std::int64_t remaining = (padded - column) / kWidth;
    if constexpr (Simd::kTileVectors == 4) {
      if (remaining >= 4) {
        body.template operator()<4>(column);
        column += 4 * kWidth;
        continue;
      }
      if (remaining == 3) {
        body.template operator()<3>(column);
        column += 3 * kWidth;
        continue;
      }
    }
    if (remaining >= 2) {
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
    SampledRows<kSampleGroup, kVectors>(rows, count, columns, centre, head, base, out, column);
  });
}

bool Finite(const float* values, std::int64_t rows, std::int64_t columns, std::int64_t stride) {
  if (stride == columns) columns *= rows, rows = 1;
  const Vector zero = Simd::Zero();
  Vector a = zero, b = zero;  // 0 * x is NaN where x is not finite, and stays
  float rest = 0;
  for (std::int64_t row = 0; row < rows; ++row, values += stride) {
    std::int64_t i = 0;
    for (; i + 2 * kWidth <= columns; i += 2 * kWidth) {
      a = Simd::Fma(zero, Simd::Load(values + i), a);
      b = Simd::Fma(zero, Simd::Load(values + i + kWidth), b);
    }
    for (; i < columns; ++i) rest += 0.0f * values[i];
  }
  return Simd::Sum(Simd::Add(a, b)) + rest == 0.0f;
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

// |x - centre|; a null centre is zero.
template <bool kCentred>
float Norm(const float* x, const float* centre, std::int64_t columns) {
  Vector a = Simd::Zero(), b = a;
  std::int64_t k = 0;
  for (; k + 2 * kWidth <= columns; k += 2 * kWidth) {
    Vector p = Simd::Load(x + k), q = Simd::Load(x + k + kWidth);
    if constexpr (kCentred) {
      p = Simd::Sub(p, Simd::Load(centre + k));
      q = Simd::Sub(q, Simd::Load(centre + k + kWidth));
    }
    a = Simd::Fma(p, p, a);
    b = Simd::Fma(q, q, b);
  }
  float sum = Simd::Sum(Simd::Add(a, b));
  for (; k < columns; ++k) {
    const float e = kCentred ? x[k] - centre[k] : x[k];
    sum += e * e;
  }
  return __builtin_sqrtf(sum);
}

void Moments(const float* x, std::int64_t rows, std::int64_t columns, double* sums, float* norms) {
  for (std::int64_t c = 0; c < columns; ++c) sums[c] = 0;
  for (std::int64_t begin = 0; begin < rows; begin += kSumRows) {
    const std::int64_t count = rows - begin < kSumRows ? rows - begin : kSumRows;
    const float* block = x + begin * columns;
    for (std::int64_t i = 0; i < count; ++i) {
      norms[begin + i] = Norm<false>(block + i * columns, nullptr, columns);
    }
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

void Distances(const float* x, const float* centre, std::int64_t rows, std::int64_t columns,
               float* distances) {
  for (std::int64_t j = 0; j < rows; ++j) {
    distances[j] = Norm<true>(x + j * columns, centre, columns);
  }
}

void ExactNorms(const float* x, const float* centre, std::int64_t rows, std::int64_t columns,
                double* norms, double* distances) {
  // Two vectors of four sums: the same order of additions on every instruction set.
  constexpr std::int64_t kLanes = 4, kSums = 2;
  using Floats = float __attribute__((vector_size(kLanes * sizeof(float))));
  using Doubles = double __attribute__((vector_size(kLanes * sizeof(double))));
  for (std::int64_t j = 0; j < rows; ++j, x += columns) {
    Doubles from_zero[kSums] = {}, from_centre[kSums] = {};
    const auto add = [&](std::int64_t k, std::int64_t sum, std::size_t bytes) {
      Floats value = {}, middle = {};
      __builtin_memcpy(&value, x + k, bytes);
      __builtin_memcpy(&middle, centre + k, bytes);
      const Doubles wide = __builtin_convertvector(value, Doubles);
      const Doubles offset = wide - __builtin_convertvector(middle, Doubles);
      from_zero[sum] += wide * wide;
      from_centre[sum] += offset * offset;
    };
    std::int64_t k = 0;
    for (; k + kSums * kLanes <= columns; k += kSums * kLanes) {
      add(k, 0, sizeof(Floats));
      add(k + kLanes, 1, sizeof(Floats));
    }
    for (; k < columns; ++k) add(k, 0, sizeof(float));
    const Doubles zero = from_zero[0] + from_zero[1], middle = from_centre[0] + from_centre[1];
    norms[j] = __builtin_sqrt((zero[0] + zero[2]) + (zero[1] + zero[3]));
    distances[j] = __builtin_sqrt((middle[0] + middle[2]) + (middle[1] + middle[3]));
  }
}

// Turns random words (as float32) into reach = (word + 1/2) 2^-32 / p, in place.
void ScaleReach(std::int64_t channels, const float* inverse_p, float* reach) {
  const Vector half = Simd::Set(0.5f), unit = Simd::Set(0x1p-32f);
  std::int64_t k = 0;
  for (; k + kWidth <= channels; k += kWidth) {
    const Vector u = Simd::Mul(Simd::Add(Simd::Load(reach + k), half), unit);
    Simd::Store(reach + k, Simd::Mul(u, Simd::Load(inverse_p + k)));
  }
  for (; k < channels; ++k) reach[k] = (reach[k] + 0.5f) * 0x1p-32f * inverse_p[k];
}

}  // namespace
}  // namespace attenuator::mca
