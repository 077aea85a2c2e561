#include "ops/common/simd/avx512.h"

namespace attenuator::quantize_rows {
namespace {

// The integers as bytes, those below 0 as 0.
inline void StoreBytes(std::uint8_t* p, Simd::Integers x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm512_cvtusepi32_epi8(_mm512_max_epi32(x, _mm512_setzero_si512())));
}

// The first `count` of them, 1 to 15.
inline void StoreFirstBytes(std::uint8_t* p, Simd::Integers x, std::int64_t count) {
  _mm512_mask_cvtusepi32_storeu_epi8(p, Simd::First(count),
                                     _mm512_max_epi32(x, _mm512_setzero_si512()));
}

}  // namespace
}  // namespace attenuator::quantize_rows

// The Simd and the functions above come first: the rest is written in terms of them.
#include "ops/quantize_rows/cpu/kernel.inl"

namespace attenuator::quantize_rows {

Kernel KernelAvx512() { return &QuantizeRows; }

}  // namespace attenuator::quantize_rows
