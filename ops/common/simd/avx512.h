// The vector registers of AVX-512: 16 floats or 16 32-bit integers, and 8 64-bit numbers for
// Philox. Included by kernel files for this instruction set alone (ops/common/cpu.h). avx2.h and
// avx512.h define the same names, which the shared kernel bodies (*.inl) are written in.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "ops/common/exp2.h"

namespace attenuator {
namespace {

struct Simd {
  using Vector = __m512;
  using Integers = __m512i;
  static constexpr std::int64_t kWidth = 16;
  static constexpr int kTileVectors = 4;  // accumulators: 24 of 32 registers
  static constexpr int TileRows(int vectors) {
    return vectors == 4 ? 6 : vectors == 3 ? 8 : vectors == 2 ? 12 : 16;
  }

  static Vector Zero() { return _mm512_setzero_ps(); }
  static Vector Set(float x) { return _mm512_set1_ps(x); }
  static Vector Load(const float* p) { return _mm512_loadu_ps(p); }
  static void Store(float* p, Vector x) { _mm512_storeu_ps(p, x); }
  // The first `count` lanes, 1 to kWidth; the others are 0 or not written.
  static Vector LoadFirst(const float* p, std::int64_t count) {
    return _mm512_maskz_loadu_ps(First(count), p);
  }
  static void StoreFirst(float* p, Vector x, std::int64_t count) {
    _mm512_mask_storeu_ps(p, First(count), x);
  }
  static Vector Add(Vector a, Vector b) { return _mm512_add_ps(a, b); }
  static Vector Sub(Vector a, Vector b) { return _mm512_sub_ps(a, b); }
  static Vector Mul(Vector a, Vector b) { return _mm512_mul_ps(a, b); }
  static Vector Div(Vector a, Vector b) { return _mm512_div_ps(a, b); }
  static Vector Fma(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
  // Both give b where either is NaN.
  static Vector Max(Vector a, Vector b) { return _mm512_max_ps(a, b); }
  static Vector Min(Vector a, Vector b) { return _mm512_min_ps(a, b); }
  static Vector Sqrt(Vector x) { return _mm512_sqrt_ps(x); }
  static Vector Abs(Vector x) { return _mm512_abs_ps(x); }
  // s < 0 ? x : y, lane by lane.
  static Vector WhereNegative(Vector s, Vector x, Vector y) {
    return _mm512_mask_mov_ps(y, _mm512_movepi32_mask(_mm512_castps_si512(s)), x);
  }
  // s > t ? x : y, lane by lane.
  static Vector WhereGreater(Vector s, Vector t, Vector x, Vector y) {
    return _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(s, t, _CMP_GT_OQ), x);
  }
  static float Sum(Vector x) { return _mm512_reduce_add_ps(x); }
  static float Largest(Vector x) { return _mm512_reduce_max_ps(x); }

  // The same of 32-bit integers, which wrap around.
  static Integers Set(std::int32_t x) { return _mm512_set1_epi32(x); }
  static Integers Load(const std::int32_t* p) { return _mm512_loadu_si512(p); }
  static void Store(std::int32_t* p, Integers x) { _mm512_storeu_si512(p, x); }
  static Integers Add(Integers a, Integers b) { return _mm512_add_epi32(a, b); }
  static Integers Sub(Integers a, Integers b) { return _mm512_sub_epi32(a, b); }
  static Integers Mul(Integers a, Integers b) { return _mm512_mullo_epi32(a, b); }
  static Integers Xor(Integers a, Integers b) { return _mm512_xor_si512(a, b); }
  static Integers Max(Integers a, Integers b) { return _mm512_max_epi32(a, b); }
  static Integers Min(Integers a, Integers b) { return _mm512_min_epi32(a, b); }
  static std::int32_t Sum(Integers x) { return _mm512_reduce_add_epi32(x); }
  static std::int32_t Largest(Integers x) { return _mm512_reduce_max_epi32(x); }
  // 1 in the lanes where x is negative, else 0.
  static Integers SignBit(Integers x) { return _mm512_srli_epi32(x, 31); }
  static Integers ShiftLeft(Integers x, int bits) {
    return _mm512_sll_epi32(x, _mm_cvtsi32_si128(bits));
  }
  // floor(x / 2).
  static Integers Half(Integers x) { return _mm512_srai_epi32(x, 1); }
  // The nearest integer, ties to even, whatever the rounding mode of the thread.
  static Integers Round(Vector x) {
    return _mm512_cvt_roundps_epi32(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static Vector FloatOf(Integers x) { return _mm512_cvtepi32_ps(x); }
  // The bits of |x|: they are ordered as the floats are, infinities and NaNs above the rest.
  static Integers AbsBits(Vector x) {
    return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7FFFFFFF));
  }
  static Vector FloatOfBits(Integers x) { return _mm512_castsi512_ps(x); }
  // p[at], lane by lane.
  static Vector Gather(const float* p, Integers at) { return _mm512_i32gather_ps(at, p, 4); }
  static Integers Gather(const std::int32_t* p, Integers at) {
    return _mm512_i32gather_epi32(at, p, 4);
  }

  // x in lanes low to high, counted from 0 and possibly outside of the register; -inf elsewhere.
  static Vector Keep(Vector x, std::int64_t low, std::int64_t high) {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __mmask16 keep = _mm512_cmpge_epi32_mask(lane, _mm512_set1_epi32(static_cast<int>(low))) &
                           _mm512_cmple_epi32_mask(lane, _mm512_set1_epi32(static_cast<int>(high)));
    return _mm512_mask_mov_ps(_mm512_set1_ps(-__builtin_inff()), keep, x);
  }

  // 2^(factor * x) for factor > 0 and products up to 1, NaN for NaN, 0 where x < least, which keeps
  // products above -126: relative error at most 1.7e-7. `factor` costs nothing, since both uses of
  // x are fused.
  static Vector Exp2(Vector x, Vector factor, Vector least) {
    const Vector to_eighths = Set(kToEighths);
    const Vector shifted = Fma(x, factor, to_eighths);
    const Vector n = Sub(shifted, to_eighths);
    const Vector f = _mm512_fmsub_ps(x, factor, n);
    Vector r = Set(kExp2[0]);
    for (int i = 1; i < 4; ++i) r = Fma(r, f, Set(kExp2[i]));
    constexpr const std::int32_t* e = kExp2Eighths;
    const __m512i table = _mm512_setr_epi32(e[0], e[1], e[2], e[3], e[4], e[5], e[6], e[7], e[0],
                                            e[1], e[2], e[3], e[4], e[5], e[6], e[7]);
    const __m512i bits = _mm512_castps_si512(shifted);
    const __m512i power =
        _mm512_add_epi32(_mm512_permutexvar_epi32(bits, table), _mm512_slli_epi32(bits, 20));
    const __mmask16 keep = _mm512_cmp_ps_mask(x, least, _CMP_NLT_UQ);
    return _mm512_maskz_mul_ps(keep, _mm512_castsi512_ps(power), r);
  }

  // out[c] lane i = row(i)[c] for c in 0..3.
  template <class Row>
  [[gnu::always_inline]] static void Transpose4(const Row& row, Vector out[4]) {
    const auto four = [&](int i) { return _mm_loadu_ps(row(i)); };
    Vector z[4];
#pragma GCC unroll 4
    for (int t = 0; t < 4; ++t) {
      z[t] = _mm512_castps128_ps512(four(t));
      z[t] = _mm512_mask_broadcast_f32x4(z[t], 0x00F0, four(4 + t));
      z[t] = _mm512_mask_broadcast_f32x4(z[t], 0x0F00, four(8 + t));
      z[t] = _mm512_mask_broadcast_f32x4(z[t], 0xF000, four(12 + t));
    }
    const __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(z[0], z[1]));
    const __m512d b = _mm512_castps_pd(_mm512_unpacklo_ps(z[2], z[3]));
    const __m512d c = _mm512_castps_pd(_mm512_unpackhi_ps(z[0], z[1]));
    const __m512d d = _mm512_castps_pd(_mm512_unpackhi_ps(z[2], z[3]));
    out[0] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
    out[1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
    out[2] = _mm512_castpd_ps(_mm512_unpacklo_pd(c, d));
    out[3] = _mm512_castpd_ps(_mm512_unpackhi_pd(c, d));
  }

  // The first `count` lanes, 1 to kWidth.
  static __mmask16 First(std::int64_t count) {
    return static_cast<__mmask16>(0xFFFFu >> (16 - count));
  }
};

// For PhiloxLanes (philox_lanes.h): one unsigned number in each 64-bit lane.
struct WideLanes {
  using Type = __m512i;
  static constexpr std::int64_t kCount = 8;
  static Type Set(std::uint32_t x) { return _mm512_set1_epi64(x); }
  static Type Count(std::uint64_t first) {
    return _mm512_add_epi64(_mm512_set1_epi64(static_cast<long long>(first)),
                            _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static Type Multiply(Type a, Type b) { return _mm512_mul_epu32(a, b); }
  static Type Xor(Type a, Type b) { return _mm512_xor_si512(a, b); }
  static Type High(Type a) { return _mm512_srli_epi64(a, 32); }
  // All words in the order of the stream.
  static void Store(const Type words[4], std::uint32_t* out) {
    const Type low = _mm512_set1_epi64(0xFFFFFFFFll);
    const Type a =
        _mm512_or_si512(_mm512_and_si512(words[0], low), _mm512_slli_epi64(words[1], 32));
    const Type b =
        _mm512_or_si512(_mm512_and_si512(words[2], low), _mm512_slli_epi64(words[3], 32));
    const Type first = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11);
    const Type second = _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15);
    _mm512_storeu_si512(out, _mm512_permutex2var_epi64(a, first, b));
    _mm512_storeu_si512(out + 16, _mm512_permutex2var_epi64(a, second, b));
  }
};

}  // namespace
}  // namespace attenuator
