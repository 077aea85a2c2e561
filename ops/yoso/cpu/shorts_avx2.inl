// 32 numbers of 16 bits in two registers of AVX2, for tables of rounded values. Included inside the
// anonymous namespace of a kernel_*.cc file.

struct Shorts {
  __m256i v[2];
};

inline Shorts ZeroShorts() { return {{_mm256_setzero_si256(), _mm256_setzero_si256()}}; }
inline Shorts LoadShorts(const std::int16_t* p) {
  const __m256i* from = reinterpret_cast<const __m256i*>(p);
  return {{_mm256_loadu_si256(from), _mm256_loadu_si256(from + 1)}};
}
inline void Store(std::int16_t* p, Shorts x) {
  __m256i* to = reinterpret_cast<__m256i*>(p);
  _mm256_storeu_si256(to, x.v[0]);
  _mm256_storeu_si256(to + 1, x.v[1]);
}
inline Shorts Add(Shorts x, Shorts y) {
  return {{_mm256_add_epi16(x.v[0], y.v[0]), _mm256_add_epi16(x.v[1], y.v[1])}};
}
// 16 bytes.
inline Ints WidenSixteen(const std::int8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {{_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))}};
}
inline Ints WidenInt16(__m256i x) {
  return {{_mm256_cvtepi16_epi32(_mm256_castsi256_si128(x)),
           _mm256_cvtepi16_epi32(_mm256_extracti128_si256(x, 1))}};
}
// Lanes 0 to 15, and 16 to 31.
inline Ints LowHalf(Shorts x) { return WidenInt16(x.v[0]); }
inline Ints HighHalf(Shorts x) { return WidenInt16(x.v[1]); }
// Bytes of 16 numbers, saturated.
inline void StoreInt8(std::int8_t* p, Ints x) {
  const __m256i mixed = _mm256_packs_epi32(x.part[0], x.part[1]);  // within 128-bit halves
  const __m256i words = _mm256_permute4x64_epi64(mixed, 0xD8);
  _mm_storeu_si128(
      reinterpret_cast<__m128i*>(p),
      _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}
