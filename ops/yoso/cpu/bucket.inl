// Adding to a bucket of a table, which is a cache line: two halves of 32 bytes on every instruction
// set. A bucket is often read again while what was stored there is on its way to the cache, and AMD
// (Zen 5) hands halves on faster than whole lines: 2.5 cycles an addition where one of 64 bytes
// takes 2.6 to 3.8. Sums are lane by lane, so that no bit depends on it. Included inside the
// anonymous namespace of a kernel_*.cc file.

// Sixteen floats.
struct FloatHalves {
  __m256 low, high;
};

inline FloatHalves LoadHalves(const float* p) {
  return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + kBlock / 2)};
}
inline void AddTo(float* bucket, const FloatHalves& x) {
  _mm256_storeu_ps(bucket, _mm256_add_ps(_mm256_loadu_ps(bucket), x.low));
  float* const rest = bucket + kBlock / 2;
  _mm256_storeu_ps(rest, _mm256_add_ps(_mm256_loadu_ps(rest), x.high));
}

// 32 numbers of 16 bits.
struct ShortHalves {
  __m256i low, high;
};

inline ShortHalves WidenHalves(const std::int8_t* p) {
  const __m128i* from = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtepi8_epi16(_mm_loadu_si128(from)),
          _mm256_cvtepi8_epi16(_mm_loadu_si128(from + 1))};
}
inline void AddTo(std::int16_t* bucket, const ShortHalves& x) {
  __m256i* const halves = reinterpret_cast<__m256i*>(bucket);
  _mm256_storeu_si256(halves, _mm256_add_epi16(_mm256_loadu_si256(halves), x.low));
  _mm256_storeu_si256(halves + 1, _mm256_add_epi16(_mm256_loadu_si256(halves + 1), x.high));
}
