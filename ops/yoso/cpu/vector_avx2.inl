// Sixteen floats and sixteen 32-bit integers in two 256-bit registers. Included inside the
// anonymous namespace of kernel_avx2.cc.

struct Vec {
  __m256 a, b;
};
struct IntVec {
  __m256i a, b;
};

alignas(32) inline constexpr std::int32_t kLaneMask[32] = {-1, -1, -1, -1, -1, -1, -1, -1,
                                                           -1, -1, -1, -1, -1, -1, -1, -1};
inline __m256i FirstLanes(int count, int from) {
  const int here = count - from < 0 ? 0 : (count - from > 8 ? 8 : count - from);
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kLaneMask + 16 - here));
}

inline Vec Zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Vec Set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Vec Load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline Vec LoadFirst(const float* p, int count) {
  return {_mm256_maskload_ps(p, FirstLanes(count, 0)),
          _mm256_maskload_ps(p + 8, FirstLanes(count, 8))};
}
inline void Store(float* p, Vec x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
inline void StoreFirst(float* p, Vec x, int count) {
  _mm256_maskstore_ps(p, FirstLanes(count, 0), x.a);
  _mm256_maskstore_ps(p + 8, FirstLanes(count, 8), x.b);
}
inline Vec Add(Vec x, Vec y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline Vec Sub(Vec x, Vec y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline Vec Mul(Vec x, Vec y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline Vec Div(Vec x, Vec y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline Vec Fma(Vec x, Vec y, Vec z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
inline Vec Min(Vec x, Vec y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline Vec Max(Vec x, Vec y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline Vec Sqrt(Vec x) { return {_mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b)}; }
inline Vec Abs(Vec x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
inline float ReduceAdd(Vec x) {
  const __m256 eight = _mm256_add_ps(x.a, x.b);
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
// s < 0 ? x : y, lane by lane.
inline Vec WhereNegative(Vec s, Vec x, Vec y) {
  return {_mm256_blendv_ps(y.a, x.a, s.a), _mm256_blendv_ps(y.b, x.b, s.b)};
}
// s > t ? x : y.
inline Vec WhereGreater(Vec s, Vec t, Vec x, Vec y) {
  return {_mm256_blendv_ps(y.a, x.a, _mm256_cmp_ps(s.a, t.a, _CMP_GT_OQ)),
          _mm256_blendv_ps(y.b, x.b, _mm256_cmp_ps(s.b, t.b, _CMP_GT_OQ))};
}
inline bool AnyGreater(Vec s, Vec t) {
  return _mm256_movemask_ps(_mm256_or_ps(_mm256_cmp_ps(s.a, t.a, _CMP_GT_OQ),
                                         _mm256_cmp_ps(s.b, t.b, _CMP_GT_OQ))) != 0;
}

inline IntVec IntZero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline IntVec IntSet1(std::int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline IntVec IntLoad(const std::int32_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
}
inline void IntStore(std::int32_t* p, IntVec x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.a);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), x.b);
}
inline IntVec IntAdd(IntVec x, IntVec y) {
  return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)};
}
inline IntVec IntSub(IntVec x, IntVec y) {
  return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)};
}
inline IntVec IntXor(IntVec x, IntVec y) {
  return {_mm256_xor_si256(x.a, y.a), _mm256_xor_si256(x.b, y.b)};
}
// 1 in the lanes where x is negative, else 0.
inline IntVec IntSignBit(IntVec x) {
  return {_mm256_srli_epi32(x.a, 31), _mm256_srli_epi32(x.b, 31)};
}
inline IntVec IntShiftLeft(IntVec x, int bits) {
  const __m128i count = _mm_cvtsi32_si128(bits);
  return {_mm256_sll_epi32(x.a, count), _mm256_sll_epi32(x.b, count)};
}
// The bits of |x|, as integers: they order like the floats, infinities and NaNs on top.
inline IntVec AbsBits(Vec x) {
  const __m256i magnitude = _mm256_set1_epi32(0x7FFFFFFF);
  return {_mm256_and_si256(_mm256_castps_si256(x.a), magnitude),
          _mm256_and_si256(_mm256_castps_si256(x.b), magnitude)};
}
inline Vec FloatOfBits(IntVec x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
// floor(x / 2).
inline IntVec IntHalf(IntVec x) { return {_mm256_srai_epi32(x.a, 1), _mm256_srai_epi32(x.b, 1)}; }
inline IntVec IntMax(IntVec x, IntVec y) {
  return {_mm256_max_epi32(x.a, y.a), _mm256_max_epi32(x.b, y.b)};
}
inline std::int32_t ReduceMax(IntVec x) {
  const __m256i eight = _mm256_max_epi32(x.a, x.b);
  __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4E));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xB1));
  return _mm_cvtsi128_si32(four);
}
inline std::int32_t ReduceAdd(IntVec x) {
  const __m256i eight = _mm256_add_epi32(x.a, x.b);
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4E));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xB1));
  return _mm_cvtsi128_si32(four);
}
// Lane i: all lanes of x[i] combined.
inline IntVec MaxOfEach(const IntVec (&x)[16]) {
  alignas(32) std::int32_t each[16];
  for (int i = 0; i < 16; ++i) each[i] = ReduceMax(x[i]);
  return IntLoad(each);
}
inline IntVec SumOfEach(const IntVec (&x)[16]) {
  alignas(32) std::int32_t each[16];
  for (int i = 0; i < 16; ++i) each[i] = ReduceAdd(x[i]);
  return IntLoad(each);
}
// Nearest integer, ties to even, whatever the rounding mode of the thread.
inline IntVec RoundToInt(Vec x) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_cvtps_epi32(_mm256_round_ps(x.a, kNearest)),
          _mm256_cvtps_epi32(_mm256_round_ps(x.b, kNearest))};
}
inline void StoreInt16(std::int16_t* p, IntVec x) {
  const __m256i packed = _mm256_packs_epi32(x.a, x.b);  // within 128-bit halves
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xD8));
}
// Bit l of the word says whether lane l of the registers is negative.
inline void StoreSigns(IntVec x, std::uint16_t* words) {
  *words = static_cast<std::uint16_t>(_mm256_movemask_ps(_mm256_castsi256_ps(x.a)) |
                                      _mm256_movemask_ps(_mm256_castsi256_ps(x.b)) << 8);
}

inline std::uint32_t NonzeroMask(Vec x, int count) {
  const std::uint32_t low = static_cast<std::uint32_t>(
      _mm256_movemask_ps(_mm256_cmp_ps(x.a, _mm256_setzero_ps(), _CMP_NEQ_UQ)));
  const std::uint32_t high = static_cast<std::uint32_t>(
      _mm256_movemask_ps(_mm256_cmp_ps(x.b, _mm256_setzero_ps(), _CMP_NEQ_UQ)));
  return (low | high << 8) & (count >= 16 ? 0xFFFFu : (1u << count) - 1u);
}
// Appends the lanes of `x` below `count` that are not zero to `values`, their numbers from `first`
// on to `places`; may write 16 of each. Returns how many.
inline int AppendNonzero(Vec x, int count, std::int32_t first, float* values,
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

  void Add(Vec x) {
    const __m128 quarters[4] = {_mm256_castps256_ps128(x.a), _mm256_extractf128_ps(x.a, 1),
                                _mm256_castps256_ps128(x.b), _mm256_extractf128_ps(x.b, 1)};
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

// Four one-byte codes of each of 16 keys against those of one query: a byte counter for each.
struct ByteCounter {
  __m256i v[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};

  void Add(const std::uint8_t* keys, __m256i query, std::uint32_t lanes) {
    for (int half = 0; half < 2; ++half) {
      const __m256i equal = _mm256_cmpeq_epi8(
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(keys + 32 * half)), query);
      v[half] = _mm256_sub_epi8(v[half], _mm256_and_si256(equal, Spread(lanes)));
    }
  }
  void Add(const std::uint8_t* keys, __m256i query) {
    for (int half = 0; half < 2; ++half) {
      const __m256i equal = _mm256_cmpeq_epi8(
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(keys + 32 * half)), query);
      v[half] = _mm256_sub_epi8(v[half], equal);
    }
  }
  static __m256i Query(const std::uint8_t* codes) {
    std::int32_t four;
    __builtin_memcpy(&four, codes, 4);
    return _mm256_set1_epi32(four);
  }
  static __m256i Spread(std::uint32_t lanes) {
    std::uint32_t bytes = 0;
    for (int t = 0; t < 4; ++t) bytes |= (lanes >> t & 1u) * 0xFFu << 8 * t;
    return _mm256_set1_epi32(static_cast<std::int32_t>(bytes));
  }
  // The sums over the four hashes of each key.
  Vec Sums() const {
    __m256 sums[2];
    for (int half = 0; half < 2; ++half) {
      const __m256i pairs = _mm256_maddubs_epi16(v[half], _mm256_set1_epi8(1));
      sums[half] = _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    return {sums[0], sums[1]};
  }
};

// The same for two-byte codes: four registers for 16 keys.
struct WordCounter {
  __m256i v[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(),
                  _mm256_setzero_si256()};

  void Add(const std::uint16_t* keys, __m256i query, std::uint32_t lanes) {
    std::uint64_t words = 0;
    for (int t = 0; t < 4; ++t)
      words |= static_cast<std::uint64_t>(lanes >> t & 1u) * 0xFFFFu << 16 * t;
    const __m256i used = _mm256_set1_epi64x(static_cast<long long>(words));
    for (int i = 0; i < 4; ++i) {
      const __m256i equal = _mm256_cmpeq_epi16(
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(keys + 16 * i)), query);
      v[i] = _mm256_sub_epi16(v[i], _mm256_and_si256(equal, used));
    }
  }
  void Add(const std::uint16_t* keys, __m256i query) { Add(keys, query, 15); }
  static __m256i Query(const std::uint16_t* codes) {
    long long four;
    __builtin_memcpy(&four, codes, 8);
    return _mm256_set1_epi64x(four);
  }
  Vec Sums() const {
    __m256 sums[2];
    for (int half = 0; half < 2; ++half) {
      const __m256i one = _mm256_set1_epi16(1);
      // hadd sums neighbours within 128-bit halves: keys 0 1 4 5 | 2 3 6 7 of the eight.
      const __m256i mixed = _mm256_hadd_epi32(_mm256_madd_epi16(v[2 * half], one),
                                              _mm256_madd_epi16(v[2 * half + 1], one));
      sums[half] = _mm256_cvtepi32_ps(_mm256_permute4x64_epi64(mixed, 0xD8));
    }
    return {sums[0], sums[1]};
  }
};

inline constexpr int kCounters = 4;             // of 16 keys each, held in registers
inline constexpr int kRowTile = 6;              // rows of a register tile of multiply
inline constexpr int kColumnTile = 1;           // its blocks of 16 columns
inline constexpr int kPlaneTile = 1;            // register pairs of 16 planes of a hash tile
inline constexpr std::int64_t kPairedKeys = 0;  // reading values twice costs more than it saves
