// Sixteen floats and sixteen 32-bit integers in one 512-bit register. Included inside the anonymous
// namespace of a kernel_*.cc file.

struct Vec {
  __m512 v;
};
struct IntVec {
  __m512i v;
};

inline __mmask16 FirstLanes(int count) {
  return static_cast<__mmask16>(count >= 16 ? 0xFFFF : (1u << count) - 1u);
}

inline Vec Zero() { return {_mm512_setzero_ps()}; }
inline Vec Set1(float x) { return {_mm512_set1_ps(x)}; }
inline Vec Load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline Vec LoadFirst(const float* p, int count) {
  return {_mm512_maskz_loadu_ps(FirstLanes(count), p)};
}
inline void Store(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }
inline void StoreFirst(float* p, Vec a, int count) {
  _mm512_mask_storeu_ps(p, FirstLanes(count), a.v);
}
inline Vec Add(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec Sub(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec Mul(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec Div(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Vec Fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Vec Min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Vec Max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Vec Sqrt(Vec a) { return {_mm512_sqrt_ps(a.v)}; }
inline Vec Abs(Vec a) { return {_mm512_abs_ps(a.v)}; }
inline float ReduceAdd(Vec a) { return _mm512_reduce_add_ps(a.v); }
// a < 0 ? x : y, lane by lane.
inline Vec WhereNegative(Vec a, Vec x, Vec y) {
  return {_mm512_mask_mov_ps(y.v, _mm512_movepi32_mask(_mm512_castps_si512(a.v)), x.v)};
}
// a > b ? x : y.
inline Vec WhereGreater(Vec a, Vec b, Vec x, Vec y) {
  return {_mm512_mask_mov_ps(y.v, _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ), x.v)};
}
inline bool AnyGreater(Vec a, Vec b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ) != 0; }

inline IntVec IntZero() { return {_mm512_setzero_si512()}; }
inline IntVec IntSet1(std::int32_t x) { return {_mm512_set1_epi32(x)}; }
inline IntVec IntLoad(const std::int32_t* p) { return {_mm512_loadu_si512(p)}; }
inline void IntStore(std::int32_t* p, IntVec a) { _mm512_storeu_si512(p, a.v); }
inline IntVec IntAdd(IntVec a, IntVec b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline IntVec IntSub(IntVec a, IntVec b) { return {_mm512_sub_epi32(a.v, b.v)}; }
inline IntVec IntXor(IntVec a, IntVec b) { return {_mm512_xor_si512(a.v, b.v)}; }
// 1 in the lanes where a is negative, else 0.
inline IntVec IntSignBit(IntVec a) { return {_mm512_srli_epi32(a.v, 31)}; }
inline IntVec IntShiftLeft(IntVec a, int bits) {
  return {_mm512_sll_epi32(a.v, _mm_cvtsi32_si128(bits))};
}
// The bits of |x|, as integers: they order like the floats, infinities and NaNs on top.
inline IntVec AbsBits(Vec x) {
  return {_mm512_and_si512(_mm512_castps_si512(x.v), _mm512_set1_epi32(0x7FFFFFFF))};
}
inline Vec FloatOfBits(IntVec a) { return {_mm512_castsi512_ps(a.v)}; }
// floor(a / 2).
inline IntVec IntHalf(IntVec a) { return {_mm512_srai_epi32(a.v, 1)}; }
inline IntVec IntMax(IntVec a, IntVec b) { return {_mm512_max_epi32(a.v, b.v)}; }
inline std::int32_t ReduceMax(IntVec a) { return _mm512_reduce_max_epi32(a.v); }
// Lane i: all lanes of a[i] combined. Each step halves the registers and what is left of each row.
template <class Combine>
inline IntVec ReduceEach(const IntVec (&a)[16], Combine combine) {
  __m512i pairs[8], fours[4], halves[2];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    pairs[i] = combine(_mm512_unpacklo_epi32(a[2 * i].v, a[2 * i + 1].v),
                       _mm512_unpackhi_epi32(a[2 * i].v, a[2 * i + 1].v));
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
inline IntVec MaxOfEach(const IntVec (&a)[16]) {
  return ReduceEach(a, [](__m512i x, __m512i y) { return _mm512_max_epi32(x, y); });
}
inline IntVec SumOfEach(const IntVec (&a)[16]) {
  return ReduceEach(a, [](__m512i x, __m512i y) { return _mm512_add_epi32(x, y); });
}
// Nearest integer, ties to even, whatever the rounding mode of the thread.
inline IntVec RoundToInt(Vec a) {
  return {_mm512_cvt_roundps_epi32(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
inline void StoreInt8(std::int8_t* p, IntVec a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v));
}
inline void StoreInt16(std::int16_t* p, IntVec a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(a.v));
}
// Bytes of four registers in their order, saturated.
inline __m512i PackBytes(IntVec a, IntVec b, IntVec c, IntVec d) {
  const __m512i low = _mm512_packs_epi32(a.v, b.v);  // within 128-bit quarters
  const __m512i high = _mm512_packs_epi32(c.v, d.v);
  const __m512i mixed = _mm512_packs_epi16(low, high);  // 32 bits of each register a quarter
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_permutexvar_epi32(order, mixed);
}
inline void StoreInt8(std::int8_t* p, const IntVec (&a)[4]) {
  _mm512_storeu_si512(p, PackBytes(a[0], a[1], a[2], a[3]));
}
// Bit l of the words says whether lane l of the registers is negative. Saturating keeps signs.
inline void StoreSigns(IntVec a, std::uint16_t* words) { *words = _mm512_movepi32_mask(a.v); }
inline void StoreSigns(IntVec a, IntVec b, IntVec c, IntVec d, std::uint16_t* words) {
  const __mmask64 bits = _mm512_movepi8_mask(PackBytes(a, b, c, d));
  __builtin_memcpy(words, &bits, sizeof bits);
}

// Appends the lanes of `a` below `count` that are not zero to `values`, their numbers from `first`
// on to `places`; may write 16 of each. Returns how many.
inline int AppendNonzero(Vec a, int count, std::int32_t first, float* values,
                         std::int32_t* places) {
  const __mmask16 some =
      _mm512_mask_cmp_ps_mask(FirstLanes(count), a.v, _mm512_setzero_ps(), _CMP_NEQ_UQ);
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  _mm512_storeu_ps(values, _mm512_maskz_compress_ps(some, a.v));
  _mm512_storeu_si512(
      places, _mm512_maskz_compress_epi32(some, _mm512_add_epi32(lanes, _mm512_set1_epi32(first))));
  return __builtin_popcount(some);
}
// A sum of squares in float64, which no float overflows or vanishes in.
struct SquareSum {
  __m512d low = _mm512_setzero_pd();
  __m512d high = _mm512_setzero_pd();

  void Add(Vec a) {
    const __m512d x = _mm512_cvtps_pd(_mm512_castps512_ps256(a.v));
    const __m512d y = _mm512_cvtps_pd(_mm512_extractf32x8_ps(a.v, 1));
    low = _mm512_fmadd_pd(x, x, low);
    high = _mm512_fmadd_pd(y, y, high);
  }
  double Total() const { return _mm512_reduce_add_pd(_mm512_add_pd(low, high)); }
};

// Four one-byte codes of each of 16 keys against those of one query: a byte counter for each.
// 1 - (key ^ query), saturated, is 1 where they are equal and else 0; comparing into a mask
// register and adding under it takes twice as long.
struct ByteCounter {
  __m512i v = _mm512_setzero_si512();

  static __m512i Equal(const std::uint8_t* keys, __m512i query) {
    return _mm512_subs_epu8(_mm512_set1_epi8(1), _mm512_xor_si512(_mm512_loadu_si512(keys), query));
  }
  void Add(const std::uint8_t* keys, __m512i query) { v = _mm512_add_epi8(v, Equal(keys, query)); }
  // `hashes`: bit t says whether hash t of the four counts.
  void Add(const std::uint8_t* keys, __m512i query, std::uint32_t hashes) {
    const __mmask64 used = 0x1111111111111111ull * hashes;
    v = _mm512_mask_add_epi8(v, used, v, Equal(keys, query));
  }
  static __m512i Query(const std::uint8_t* codes) {
    std::int32_t four;
    __builtin_memcpy(&four, codes, 4);
    return _mm512_set1_epi32(four);
  }
  // The sums over the four hashes of each key.
  Vec Sums() const {
    const __m512i pairs = _mm512_maddubs_epi16(v, _mm512_set1_epi8(1));
    return {_mm512_cvtepi32_ps(_mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))};
  }
};

// The same for two-byte codes: two registers for 16 keys.
struct WordCounter {
  __m512i v[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};

  static __m512i Equal(const std::uint16_t* keys, __m512i query) {
    return _mm512_subs_epu16(_mm512_set1_epi16(1),
                             _mm512_xor_si512(_mm512_loadu_si512(keys), query));
  }
  void Add(const std::uint16_t* keys, __m512i query) {
    for (int half = 0; half < 2; ++half) {
      v[half] = _mm512_add_epi16(v[half], Equal(keys + 32 * half, query));
    }
  }
  void Add(const std::uint16_t* keys, __m512i query, std::uint32_t hashes) {
    const __mmask32 used = static_cast<__mmask32>(0x11111111u * hashes);
    for (int half = 0; half < 2; ++half) {
      v[half] = _mm512_mask_add_epi16(v[half], used, v[half], Equal(keys + 32 * half, query));
    }
  }
  static __m512i Query(const std::uint16_t* codes) {
    long long four;
    __builtin_memcpy(&four, codes, 8);
    return _mm512_set1_epi64(four);
  }
  Vec Sums() const {
    __m256i keys[2];
    for (int half = 0; half < 2; ++half) {
      const __m512i pairs = _mm512_madd_epi16(v[half], _mm512_set1_epi16(1));
      keys[half] = _mm512_cvtepi64_epi32(_mm512_add_epi32(pairs, _mm512_srli_epi64(pairs, 32)));
    }
    return {_mm512_cvtepi32_ps(_mm512_inserti64x4(_mm512_castsi256_si512(keys[0]), keys[1], 1))};
  }
};

inline constexpr int kCounters = 8;                // of 16 keys each, held in registers
inline constexpr int kRowTile = 6;                 // rows of a register tile of multiply
inline constexpr int kColumnTile = 4;              // its blocks of 16 columns
inline constexpr int kPlaneTile = 4;               // registers of 16 planes of a hash tile
inline constexpr std::int64_t kPairedKeys = 1536;  // up to so many, tables are filled in pairs
