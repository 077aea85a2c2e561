// How AVX-512 compares hash codes, and the tile sizes that suit its registers. Included inside the
// anonymous namespace of a kernel_*.cc file.

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
  Floats Sums() const {
    const __m512i pairs = _mm512_maddubs_epi16(v, _mm512_set1_epi8(1));
    return {{_mm512_cvtepi32_ps(_mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))}};
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
  Floats Sums() const {
    __m256i keys[2];
    for (int half = 0; half < 2; ++half) {
      const __m512i pairs = _mm512_madd_epi16(v[half], _mm512_set1_epi16(1));
      keys[half] = _mm512_cvtepi64_epi32(_mm512_add_epi32(pairs, _mm512_srli_epi64(pairs, 32)));
    }
    return {{_mm512_cvtepi32_ps(_mm512_inserti64x4(_mm512_castsi256_si512(keys[0]), keys[1], 1))}};
  }
};

inline constexpr int kCounters = 8;                // of 16 keys each, held in registers
inline constexpr int kComparedQueries = 2;         // queries compared together
inline constexpr int kRowTile = 6;                 // rows of a register tile of multiply
inline constexpr int kColumnTile = 4;              // its blocks of 16 columns
inline constexpr int kPlaneTile = 4;               // registers of 16 planes of a hash tile
inline constexpr std::int64_t kPairedKeys = 1536;  // up to so many, tables are filled in pairs
