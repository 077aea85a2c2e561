#include "ops/common/simd/avx2.h"

namespace attenuator::quantize_rows {
namespace {

// The integers as bytes, those below 0 as 0.
inline __m128i Bytes(Simd::Integers x) {
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  return _mm_packus_epi16(words, words);
}

inline void StoreBytes(std::uint8_t* p, Simd::Integers x) {
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), Bytes(x));
}

// The first `count` of them, 1 to 7.
inline void StoreFirstBytes(std::uint8_t* p, Simd::Integers x, std::int64_t count) {
  std::uint64_t bytes = static_cast<std::uint64_t>(_mm_cvtsi128_si64(Bytes(x)));
  for (std::int64_t i = 0; i < count; ++i, bytes >>= 8) p[i] = static_cast<std::uint8_t>(bytes);
}

}  // namespace
}  // namespace attenuator::quantize_rows

// The Simd and the functions above come first: the rest is written in terms of them.
#include "ops/quantize_rows/cpu/kernel.inl"

namespace attenuator::quantize_rows {

Kernel KernelAvx2() { return &QuantizeRows; }

}  // namespace attenuator::quantize_rows
