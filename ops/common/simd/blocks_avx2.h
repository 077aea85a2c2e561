// What AVX2 does its own way with sixteen numbers (blocks.h).
#pragma once

#include "ops/common/simd/avx2.h"
// Simd comes first.
#include "ops/common/simd/blocks.h"

namespace attenuator {
namespace {

// Whether s > t in any lane.
inline bool AnyGreater(Floats s, Floats t) {
  return _mm256_movemask_ps(_mm256_or_ps(_mm256_cmp_ps(s.part[0], t.part[0], _CMP_GT_OQ),
                                         _mm256_cmp_ps(s.part[1], t.part[1], _CMP_GT_OQ))) != 0;
}

// Lane i: all lanes of x[i] combined.
inline Ints MaxOfEach(const Ints (&x)[16]) {
  alignas(32) std::int32_t each[16];
  for (int i = 0; i < 16; ++i) each[i] = Largest(x[i]);
  return Load(each);
}
inline Ints SumOfEach(const Ints (&x)[16]) {
  alignas(32) std::int32_t each[16];
  for (int i = 0; i < 16; ++i) each[i] = Sum(x[i]);
  return Load(each);
}
inline void StoreInt16(std::int16_t* p, Ints x) {
  const __m256i packed = _mm256_packs_epi32(x.part[0], x.part[1]);  // within 128-bit halves
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xD8));
}
// Bit l of the word says whether lane l of the registers is negative.
inline void StoreSigns(Ints x, std::uint16_t* words) {
  *words = static_cast<std::uint16_t>(_mm256_movemask_ps(_mm256_castsi256_ps(x.part[0])) |
                                      _mm256_movemask_ps(_mm256_castsi256_ps(x.part[1])) << 8);
}

inline std::uint32_t NonzeroMask(Floats x, int count) {
  const std::uint32_t low = static_cast<std::uint32_t>(
      _mm256_movemask_ps(_mm256_cmp_ps(x.part[0], _mm256_setzero_ps(), _CMP_NEQ_UQ)));
  const std::uint32_t high = static_cast<std::uint32_t>(
      _mm256_movemask_ps(_mm256_cmp_ps(x.part[1], _mm256_setzero_ps(), _CMP_NEQ_UQ)));
  return (low | high << 8) & (count >= 16 ? 0xFFFFu : (1u << count) - 1u);
}
// Appends the lanes of `x` below `count` that are not zero to `values`, their numbers from `first`
// on to `places`; may write 16 of each. Returns how many.
inline int AppendNonzero(Floats x, int count, std::int32_t first, float* values,
                         std::int32_t* places) {
  float lanes[16];
  Store(lanes, x);
  int size = 0;
  for (std::uint32_t some = NonzeroMask(x, count); some != 0; some &= some - 1) {
    const int lane = __builtin_ctz(some);
    values[size] = lanes[lane];
    places[size++] = first + lane;
  }
  return size;
}
// A sum of squares in float64, which no float overflows or vanishes in.
struct SquareSum {
  __m256d part[4] = {_mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd(),
                     _mm256_setzero_pd()};

  void Add(Floats x) {
    const __m128 quarters[4] = {
        _mm256_castps256_ps128(x.part[0]), _mm256_extractf128_ps(x.part[0], 1),
        _mm256_castps256_ps128(x.part[1]), _mm256_extractf128_ps(x.part[1], 1)};
    for (int i = 0; i < 4; ++i) {
      const __m256d wide = _mm256_cvtps_pd(quarters[i]);
      part[i] = _mm256_fmadd_pd(wide, wide, part[i]);
    }
  }
  double Total() const {
    const __m256d four =
        _mm256_add_pd(_mm256_add_pd(part[0], part[2]), _mm256_add_pd(part[1], part[3]));
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
  }
};

}  // namespace
}  // namespace attenuator
