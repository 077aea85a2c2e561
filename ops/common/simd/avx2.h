// The vector registers of AVX2: 8 floats or 8 32-bit integers, and 4 64-bit numbers for Philox.
// Included by kernel files for this instruction set alone (ops/common/cpu.h). avx2.h and avx512.h
// define the same names, which the shared kernel bodies (*.inl) are written in.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "ops/common/exp2.h"

namespace attenuator {
namespace {

struct Simd {
  using Vector = __m256;
  using Integers = __m256i;
  static constexpr std::int64_t kWidth = 8;
  static constexpr int kTileVectors = 2;  // accumulators: 12 of 16 registers
  static constexpr int TileRows(int vectors) { return vectors == 2 ? 6 : 12; }

  static Vector Zero() { return _mm256_setzero_ps(); }
  static Vector Set(float x) { return _mm256_set1_ps(x); }
  static Vector Load(const float* p) { return _mm256_loadu_ps(p); }
  static void Store(float* p, Vector x) { _mm256_storeu_ps(p, x); }
  // The first `count` lanes, 1 to kWidth; the others are 0 or not written.
  static Vector LoadFirst(const float* p, std::int64_t count) {
    return _mm256_maskload_ps(p, First(count));
  }
  static void StoreFirst(float* p, Vector x, std::int64_t count) {
    _mm256_maskstore_ps(p, First(count), x);
  }
  static Vector Add(Vector a, Vector b) { return _mm256_add_ps(a, b); }
  static Vector Sub(Vector a, Vector b) { return _mm256_sub_ps(a, b); }
  static Vector Mul(Vector a, Vector b) { return _mm256_mul_ps(a, b); }
  static Vector Div(Vector a, Vector b) { return _mm256_div_ps(a, b); }
  static Vector Fma(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
  // Both give b where either is NaN.
  static Vector Max(Vector a, Vector b) { return _mm256_max_ps(a, b); }
  static Vector Min(Vector a, Vector b) { return _mm256_min_ps(a, b); }
  static Vector Sqrt(Vector x) { return _mm256_sqrt_ps(x); }
  static Vector Abs(Vector x) { return _mm256_andnot_ps(Set(-0.0f), x); }
  // s < 0 ? x : y, lane by lane.
  static Vector WhereNegative(Vector s, Vector x, Vector y) { return _mm256_blendv_ps(y, x, s); }
  // s > t ? x : y, lane by lane.
  static Vector WhereGreater(Vector s, Vector t, Vector x, Vector y) {
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(s, t, _CMP_GT_OQ));
  }
  static float Sum(Vector x) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }
  static float Largest(Vector x) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
  }

  // The same of 32-bit integers, which wrap around.
  static Integers Set(std::int32_t x) { return _mm256_set1_epi32(x); }
  static Integers Load(const std::int32_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const Integers*>(p));
  }
  static void Store(std::int32_t* p, Integers x) {
    _mm256_storeu_si256(reinterpret_cast<Integers*>(p), x);
  }
  static Integers Add(Integers a, Integers b) { return _mm256_add_epi32(a, b); }
  static Integers Sub(Integers a, Integers b) { return _mm256_sub_epi32(a, b); }
  static Integers Mul(Integers a, Integers b) { return _mm256_mullo_epi32(a, b); }
  static Integers Xor(Integers a, Integers b) { return _mm256_xor_si256(a, b); }
  static Integers Max(Integers a, Integers b) { return _mm256_max_epi32(a, b); }
  static Integers Min(Integers a, Integers b) { return _mm256_min_epi32(a, b); }
  static std::int32_t Sum(Integers x) {
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1));
    return _mm_cvtsi128_si32(s);
  }
  static std::int32_t Largest(Integers x) {
    __m128i s = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    s = _mm_max_epi32(s, _mm_shuffle_epi32(s, 0x4E));
    s = _mm_max_epi32(s, _mm_shuffle_epi32(s, 0xB1));
    return _mm_cvtsi128_si32(s);
  }
  // 1 in the lanes where x is negative, else 0.
  static Integers SignBit(Integers x) { return _mm256_srli_epi32(x, 31); }
  static Integers ShiftLeft(Integers x, int bits) {
    return _mm256_sll_epi32(x, _mm_cvtsi32_si128(bits));
  }
  // floor(x / 2).
  static Integers Half(Integers x) { return _mm256_srai_epi32(x, 1); }
  // The nearest integer, ties to even, whatever the rounding mode of the thread.
  static Integers Round(Vector x) {
    return _mm256_cvtps_epi32(_mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  static Vector FloatOf(Integers x) { return _mm256_cvtepi32_ps(x); }
  // The bits of |x|: they are ordered as the floats are, infinities and NaNs above the rest.
  static Integers AbsBits(Vector x) {
    return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7FFFFFFF));
  }
  static Vector FloatOfBits(Integers x) { return _mm256_castsi256_ps(x); }
  // p[at], lane by lane.
  static Vector Gather(const float* p, Integers at) { return _mm256_i32gather_ps(p, at, 4); }
  static Integers Gather(const std::int32_t* p, Integers at) {
    return _mm256_i32gather_epi32(p, at, 4);
  }

  // x in lanes low to high, counted from 0 and possibly outside of the register; -inf elsewhere.
  static Vector Keep(Vector x, std::int64_t low, std::int64_t high) {
    const __m256i lane = Lanes();
    const __m256i drop =
        _mm256_or_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(low)), lane),
                        _mm256_cmpgt_epi32(lane, _mm256_set1_epi32(static_cast<int>(high))));
    return _mm256_blendv_ps(x, Set(-__builtin_inff()), _mm256_castsi256_ps(drop));
  }

  // 2^(factor * x) for factor > 0 and products up to 1, NaN for NaN, 0 where x < least, which keeps
  // products above -126: relative error at most 1.7e-7. `factor` costs nothing, since both uses of
  // x are fused.
  static Vector Exp2(Vector x, Vector factor, Vector least) {
    const Vector to_eighths = Set(kToEighths);
    const Vector shifted = Fma(x, factor, to_eighths);
    const Vector n = Sub(shifted, to_eighths);
    const Vector f = _mm256_fmsub_ps(x, factor, n);
    Vector r = Set(kExp2[0]);
    for (int i = 1; i < 4; ++i) r = Fma(r, f, Set(kExp2[i]));
    constexpr const std::int32_t* e = kExp2Eighths;
    const __m256i table = _mm256_setr_epi32(e[0], e[1], e[2], e[3], e[4], e[5], e[6], e[7]);
    const __m256i bits = _mm256_castps_si256(shifted);
    const __m256i power =
        _mm256_add_epi32(_mm256_permutevar8x32_epi32(table, bits), _mm256_slli_epi32(bits, 20));
    r = Mul(_mm256_castsi256_ps(power), r);
    return _mm256_and_ps(r, _mm256_cmp_ps(x, least, _CMP_NLT_UQ));
  }

  // out[c] lane i = row(i)[c] for c in 0..3.
  template <class Row>
  [[gnu::always_inline]] static void Transpose4(const Row& row, Vector out[4]) {
    const auto four = [&](int i) { return _mm_loadu_ps(row(i)); };
    Vector z[4];
#pragma GCC unroll 4
    for (int t = 0; t < 4; ++t) {
      z[t] = _mm256_insertf128_ps(_mm256_castps128_ps256(four(t)), four(4 + t), 1);
    }
    const __m256d a = _mm256_castps_pd(_mm256_unpacklo_ps(z[0], z[1]));
    const __m256d b = _mm256_castps_pd(_mm256_unpacklo_ps(z[2], z[3]));
    const __m256d c = _mm256_castps_pd(_mm256_unpackhi_ps(z[0], z[1]));
    const __m256d d = _mm256_castps_pd(_mm256_unpackhi_ps(z[2], z[3]));
    out[0] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, b));
    out[1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, b));
    out[2] = _mm256_castpd_ps(_mm256_unpacklo_pd(c, d));
    out[3] = _mm256_castpd_ps(_mm256_unpackhi_pd(c, d));
  }

 private:
  static __m256i Lanes() { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
  static __m256i First(std::int64_t count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), Lanes());
  }
};

// For PhiloxLanes (philox_lanes.h): one unsigned number in each 64-bit lane.
struct WideLanes {
  using Type = __m256i;
  static constexpr std::int64_t kCount = 4;
  static Type Set(std::uint32_t x) { return _mm256_set1_epi64x(x); }
  static Type Count(std::uint64_t first) {
    return _mm256_add_epi64(_mm256_set1_epi64x(static_cast<long long>(first)),
                            _mm256_setr_epi64x(0, 1, 2, 3));
  }
  static Type Multiply(Type a, Type b) { return _mm256_mul_epu32(a, b); }
  static Type Xor(Type a, Type b) { return _mm256_xor_si256(a, b); }
  static Type High(Type a) { return _mm256_srli_epi64(a, 32); }
  // All words in the order of the stream.
  static void Store(const Type words[4], std::uint32_t* out) {
    const Type a = _mm256_blend_epi32(words[0], _mm256_slli_epi64(words[1], 32), 0xAA);
    const Type b = _mm256_blend_epi32(words[2], _mm256_slli_epi64(words[3], 32), 0xAA);
    const Type even = _mm256_unpacklo_epi64(a, b), odd = _mm256_unpackhi_epi64(a, b);
    _mm256_storeu_si256(reinterpret_cast<Type*>(out), _mm256_permute2x128_si256(even, odd, 0x20));
    _mm256_storeu_si256(reinterpret_cast<Type*>(out + 8),
                        _mm256_permute2x128_si256(even, odd, 0x31));
  }
};

}  // namespace
}  // namespace attenuator
