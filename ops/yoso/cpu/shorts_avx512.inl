// 32 numbers of 16 bits in a register of AVX-512, for tables of rounded values. Included inside the
// anonymous namespace of a kernel_*.cc file.

struct Shorts {
  __m512i v;
};

inline Shorts ZeroShorts() { return {_mm512_setzero_si512()}; }
inline Shorts LoadShorts(const std::int16_t* p) { return {_mm512_loadu_si512(p)}; }
inline void Store(std::int16_t* p, Shorts x) { _mm512_storeu_si512(p, x.v); }
inline Shorts Add(Shorts x, Shorts y) { return {_mm512_add_epi16(x.v, y.v)}; }
// 16 bytes.
inline Ints WidenSixteen(const std::int8_t* p) {
  return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
// Lanes 0 to 15, and 16 to 31.
inline Ints LowHalf(Shorts x) { return {_mm512_cvtepi16_epi32(_mm512_castsi512_si256(x.v))}; }
inline Ints HighHalf(Shorts x) {
  return {_mm512_cvtepi16_epi32(_mm512_extracti64x4_epi64(x.v, 1))};
}
