// What AVX-512 does its own way with sixteen numbers (blocks.h).
#pragma once

#include "ops/common/simd/avx512.h"
// Simd comes first.
#include "ops/common/simd/blocks.h"

namespace attenuator {
namespace {

// Whether a > b in any lane.
inline bool AnyGreater(Floats a, Floats b) {
  return _mm512_cmp_ps_mask(a.part[0], b.part[0], _CMP_GT_OQ) != 0;
}

// Lane i: all lanes of a[i] combined. Each step halves the registers and what is left of each row.
template <class Combine>
inline Ints ReduceEach(const Ints (&a)[16], Combine combine) {
  __m512i pairs[8], fours[4], halves[2];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    pairs[i] = combine(_mm512_unpacklo_epi32(a[2 * i].part[0], a[2 * i + 1].part[0]),
                       _mm512_unpackhi_epi32(a[2 * i].part[0], a[2 * i + 1].part[0]));
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    fours[i] = combine(_mm512_unpacklo_epi64(pairs[2 * i], pairs[2 * i + 1]),
                       _mm512_unpackhi_epi64(pairs[2 * i], pairs[2 * i + 1]));
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    halves[i] = combine(_mm512_shuffle_i32x4(fours[2 * i], fours[2 * i + 1], 0x88),
                        _mm512_shuffle_i32x4(fours[2 * i], fours[2 * i + 1], 0xDD));
  }
  return {combine(_mm512_shuffle_i32x4(halves[0], halves[1], 0x88),
                  _mm512_shuffle_i32x4(halves[0], halves[1], 0xDD))};
}
inline Ints MaxOfEach(const Ints (&a)[16]) {
  return ReduceEach(a, [](__m512i x, __m512i y) { return _mm512_max_epi32(x, y); });
}
inline Ints SumOfEach(const Ints (&a)[16]) {
  return ReduceEach(a, [](__m512i x, __m512i y) { return _mm512_add_epi32(x, y); });
}
inline void StoreInt8(std::int8_t* p, Ints a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.part[0]));
}
inline void StoreInt16(std::int16_t* p, Ints a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(a.part[0]));
}
// Bytes of four registers in their order, saturated.
inline __m512i PackBytes(Ints a, Ints b, Ints c, Ints d) {
  const __m512i low = _mm512_packs_epi32(a.part[0], b.part[0]);  // within 128-bit quarters
  const __m512i high = _mm512_packs_epi32(c.part[0], d.part[0]);
  const __m512i mixed = _mm512_packs_epi16(low, high);  // 32 bits of each register a quarter
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_permutexvar_epi32(order, mixed);
}
inline void StoreInt8(std::int8_t* p, const Ints (&a)[4]) {
  _mm512_storeu_si512(p, PackBytes(a[0], a[1], a[2], a[3]));
}
// Bit l of the words says whether lane l of the registers is negative. Saturating keeps signs.
inline void StoreSigns(Ints a, std::uint16_t* words) { *words = _mm512_movepi32_mask(a.part[0]); }
inline void StoreSigns(Ints a, Ints b, Ints c, Ints d, std::uint16_t* words) {
  const __mmask64 bits = _mm512_movepi8_mask(PackBytes(a, b, c, d));
  __builtin_memcpy(words, &bits, sizeof bits);
}

// Appends the lanes of `a` below `count` that are not zero to `values`, their numbers from `first`
// on to `places`; may write 16 of each. Returns how many.
inline int AppendNonzero(Floats a, int count, std::int32_t first, float* values,
                         std::int32_t* places) {
  const __mmask16 some =
      _mm512_mask_cmp_ps_mask(Simd::First(count), a.part[0], _mm512_setzero_ps(), _CMP_NEQ_UQ);
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  _mm512_storeu_ps(values, _mm512_maskz_compress_ps(some, a.part[0]));
  _mm512_storeu_si512(
      places, _mm512_maskz_compress_epi32(some, _mm512_add_epi32(lanes, _mm512_set1_epi32(first))));
  return __builtin_popcount(some);
}
// A sum of squares in float64, which no float overflows or vanishes in.
struct SquareSum {
  __m512d low = _mm512_setzero_pd();
  __m512d high = _mm512_setzero_pd();

  void Add(Floats a) {
    const __m512d x = _mm512_cvtps_pd(_mm512_castps512_ps256(a.part[0]));
    const __m512d y = _mm512_cvtps_pd(_mm512_extractf32x8_ps(a.part[0], 1));
    low = _mm512_fmadd_pd(x, x, low);
    high = _mm512_fmadd_pd(y, y, high);
  }
  double Total() const { return _mm512_reduce_add_pd(_mm512_add_pd(low, high)); }
};

}  // namespace
}  // namespace attenuator
