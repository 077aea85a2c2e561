// How AVX2 compares hash codes, and the tile sizes that suit its registers. Included inside the
// anonymous namespace of a kernel_*.cc file.

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
  Floats Sums() const {
    __m256 sums[2];
    for (int half = 0; half < 2; ++half) {
      const __m256i pairs = _mm256_maddubs_epi16(v[half], _mm256_set1_epi8(1));
      sums[half] = _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    return {{sums[0], sums[1]}};
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
  Floats Sums() const {
    __m256 sums[2];
    for (int half = 0; half < 2; ++half) {
      const __m256i one = _mm256_set1_epi16(1);
      // hadd sums neighbours within 128-bit halves: keys 0 1 4 5 | 2 3 6 7 of the eight.
      const __m256i mixed = _mm256_hadd_epi32(_mm256_madd_epi16(v[2 * half], one),
                                              _mm256_madd_epi16(v[2 * half + 1], one));
      sums[half] = _mm256_cvtepi32_ps(_mm256_permute4x64_epi64(mixed, 0xD8));
    }
    return {{sums[0], sums[1]}};
  }
};

inline constexpr int kCounters = 4;             // of 16 keys each, held in registers
inline constexpr int kComparedQueries = 1;      // queries compared together
inline constexpr int kRowTile = 6;              // rows of a register tile of multiply
inline constexpr int kColumnTile = 1;           // its blocks of 16 columns
inline constexpr int kPlaneTile = 1;            // register pairs of 16 planes of a hash tile
inline constexpr std::int64_t kPairedKeys = 0;  // reading values twice costs more than it saves
