// How numbers become int8: keys, values and queries. README.md of ops/softmax has the formulas.
//
// Keys and values are read twice, row after row: for the mean and range of each column, and to
// round them. Columns come in pieces of up to four vectors, so that all of these stay in registers.
// Included inside the anonymous namespace of int8_avx512_vnni.cc and int8_avx512_amx.cc, behind
// their ValueLayout and kKeySlack.

using Integers = Simd::Integers;

constexpr float kHighest = 127;
constexpr float kLeastSize = 1e-30f;  // numbers below are rounded to 0
constexpr float kMostFactor = 1e30f;  // of a key, beyond which no int8 stands for keys
constexpr float kLargestFloat = 3.402823466e38f;
constexpr float kNan = __builtin_nanf("");
// A score's number counts so many powers of two at least, and at most.
constexpr float kLeastStep = 0x1p-16f, kMostStep = 4;
// Scores are sums of integers on top of the bits of 1.5 * 2^23: as floats they are that plus the
// sum, exactly, without a conversion.
constexpr std::int32_t kMagicBits = 0x4B400000;
constexpr float kMagic = 0x1.8p23f;

// Rounded keys and values of a head, as they lie in memory.
struct Rounded {
  // A key's number times its query's is this much of the score's power of two; NaN where no int8
  // stands for keys or values.
  float* key_factor;
  float* value_scale;   // [padded value_dim], of each column
  float* value_mean;    // [padded value_dim], which was subtracted before rounding
  std::int8_t* values;  // as ValueLayout says
  std::uint8_t* keys;   // [keys, head_dim in fours]: the number plus 128

  Rounded(const Head& head, std::byte* memory)
      : key_factor(reinterpret_cast<float*>(memory)),
        value_scale(key_factor + kWidestVector),
        value_mean(value_scale + PaddedToVectors(head.value_dim)),
        values(reinterpret_cast<std::int8_t*>(value_mean + PaddedToVectors(head.value_dim))),
        keys(reinterpret_cast<std::uint8_t*>(values) + LayoutOf(head).bytes()) {}

  static ValueLayout LayoutOf(const Head& head) {
    return {.length = head.length, .columns = Padded(head.value_dim)};
  }

  // A multiple of 64.
  static std::int64_t Bytes(const Head& head) {
    const std::int64_t floats = kWidestVector + 2 * PaddedToVectors(head.value_dim);
    const std::int64_t keys = (Fours(head.length) + kKeySlack) * Fours(head.head_dim);
    return (floats * 4 + LayoutOf(head).bytes() + keys + 63) / 64 * 64;
  }

  bool usable() const { return *key_factor == *key_factor; }
};

// Bytes of a row block, as Int8ScratchFloats counts them.
struct Int8Scratch {
  std::int32_t* scores;   // [kInt8KeyBlock, pitch], from kMagicBits on; the bits of -inf: not seen
  std::int8_t* query;     // [padded head_dim / 4, pitch, 4]
  std::int8_t* rows;      // [16, padded head_dim], before they are transposed into query
  std::int32_t* start;    // [64], what a sum begins with so that keys count without their 128
  std::int32_t* most;     // [64], the largest score of the key block
  std::int32_t* total;    // [64], sum of the key block's weights
  std::int32_t* rest;     // [64], sum of what rounding took from them, in 128ths
  float* step;            // [64], powers of two that 1 of a score is worth
  float* poison;          // [64], 1, or NaN for a query that is not finite
  float* maximum;         // [64], the largest score so far, as a power of two
  float* sum;             // [64], of all weights so far, relative to it
  float* lost;            // [64], how much rounding moved that, key block by key block, in 128ths
  float* old_factor;      // [64], what sums so far are multiplied by
  float* new_factor;      // [64], what the key block's sums are multiplied by
  float* kept;            // sums of weights times values: LoadKept has the layout
  std::uint8_t* weights;  // [keys / 4, pitch, 4]: 255 is the largest of the key block
  float* tops;            // [Int8Pieces, 64], `maximum` of each key block alone; for maxima

  Int8Scratch(const Head& head, bool maxima, float* memory) {
    const std::int64_t depth = PaddedToVectors(head.head_dim);
    const auto take = [&](std::int64_t floats) {
      float* const part = memory;
      memory += floats;
      return part;
    };
    const auto integers = [&] { return reinterpret_cast<std::int32_t*>(take(kQueryBlock)); };
    scores = reinterpret_cast<std::int32_t*>(take(kInt8KeyBlock * kQueryBlock));
    query = reinterpret_cast<std::int8_t*>(take(depth / 4 * kQueryBlock));
    rows = reinterpret_cast<std::int8_t*>(take(depth / 4 * kWidth));
    start = integers();
    most = integers();
    total = integers();
    rest = integers();
    step = take(kQueryBlock);
    poison = take(kQueryBlock);
    maximum = take(kQueryBlock);
    sum = take(kQueryBlock);
    lost = take(kQueryBlock);
    old_factor = take(kQueryBlock);
    new_factor = take(kQueryBlock);
    kept = take(kQueryBlock * PaddedToVectors(head.value_dim));
    weights = reinterpret_cast<std::uint8_t*>(take(Int8WeightFloats(head, maxima)));
    tops = memory;
  }
};

// sums[lane] += four products of an unsigned and a signed byte each. Not the intrinsic: GCC 12
// copies every accumulator before and after it.
[[gnu::always_inline]] inline void Dot(Integers& sums, Integers unsigned_bytes,
                                       Integers signed_bytes) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(unsigned_bytes), "v"(signed_bytes));
}

// Four words and four words, from two vectors of integers each, as bytes side by side: lane i has
// the numbers of all lanes i. Both steps saturate, to signed or unsigned bytes.
template <bool kSigned>
[[gnu::always_inline]] inline Integers PackBytes(Integers first, Integers second) {
  const Integers order =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  return _mm512_shuffle_epi8(
      kSigned ? _mm512_packs_epi16(first, second) : _mm512_packus_epi16(first, second), order);
}

// Calls visit<vectors>(first) for pieces of up to four vectors of `count` columns or lanes.
template <class Visit>
[[gnu::always_inline]] inline void ForVectors(std::int64_t count, const Visit& visit) {
  for (std::int64_t first = 0; first < count; first += 4 * kWidth) {
    switch ((Smaller(count - first, 4 * kWidth) + kWidth - 1) / kWidth) {
      case 4:
        visit.template operator()<4>(first);
        break;
      case 3:
        visit.template operator()<3>(first);
        break;
      case 2:
        visit.template operator()<2>(first);
        break;
      default:
        visit.template operator()<1>(first);
    }
  }
}

// Columns of rows of floats, in whole vectors; `count` of them are there.
template <int kVectors>
struct Columns {
  const float* data;
  std::int64_t stride;
  std::int64_t count;

  [[gnu::always_inline]] Vector Load(std::int64_t row, int v) const {
    return Simd::LoadFirst(data + row * stride + v * kWidth, Smaller(count - v * kWidth, kWidth));
  }

  // Stores the mean of each column; the bits of the largest distance from it stay: more than those
  // of any number where a column is not finite.
  void Measure(std::int64_t length, float* means, Integers (&most)[kVectors]) const {
    Vector sum[kVectors], low[kVectors], high[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      sum[v] = Simd::Zero();
      low[v] = high[v] = Load(0, v);
    }
    for (std::int64_t j = 0; j < length; ++j) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const Vector x = Load(j, v);
        sum[v] = Simd::Add(sum[v], x);
        low[v] = Simd::Min(x, low[v]);
        high[v] = Simd::Max(x, high[v]);
      }
    }
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const Vector mean = Simd::Div(sum[v], Simd::Set(static_cast<float>(length)));
      Simd::Store(means + v * kWidth, mean);
      most[v] = Simd::Max(Simd::AbsBits(Simd::Sub(high[v], mean)),
                          Simd::AbsBits(Simd::Sub(mean, low[v])));
    }
  }
};

// round(factor * x), for products up to 127.
[[gnu::always_inline]] inline Integers Rounding(Vector x, Vector factor) {
  return Simd::Round(Simd::Mul(x, factor));
}

// Keys less their mean, one scale for all. The power of two that a key's number times its query's
// counts, without the query's scale; NaN where no int8 stands for keys.
inline float RoundKeys(const Head& head, std::uint8_t* keys) {
  float means[256];  // the most dimensions that a head may have
  Integers most = Simd::Set(0);
  ForVectors(head.head_dim, [&]<int kVectors>(std::int64_t c) {
    Integers distance[kVectors];
    const Columns<kVectors> columns{head.key + c, head.key_stride, head.head_dim - c};
    columns.Measure(head.length, means + c, distance);
    for (const Integers& some : distance) most = Simd::Max(most, some);
  });
  const float size = __builtin_bit_cast(float, Simd::Largest(most));
  const float factor = size / kHighest * head.scale * kLog2E;
  if (!(size <= kLargestFloat && __builtin_fabsf(factor) <= kMostFactor)) return kNan;
  const Vector inverse = Simd::Set(size < kLeastSize ? 0.0f : kHighest / size);
  const std::int64_t depth = Fours(head.head_dim), rows = Fours(head.length);
  for (std::int64_t j = 0; j < rows; ++j) {
    const float* key = head.key + Smaller(j, head.length - 1) * head.key_stride;
    for (std::int64_t c = 0; c < depth; c += kWidth) {
      const Vector x = Simd::LoadFirst(key + c, Smaller(head.head_dim - c, kWidth));
      const Integers number = Rounding(Simd::Sub(x, Simd::Load(means + c)), inverse);
      _mm_mask_storeu_epi8(keys + j * depth + c, Simd::First(Smaller(depth - c, kWidth)),
                           _mm512_cvtepi32_epi8(Simd::Add(number, Simd::Set(128))));
    }
  }
  return size < kLeastSize ? 0.0f : factor;
}

// Values less the mean of their column, a scale a column; whether all are finite.
inline bool RoundValues(const Head& head, const Rounded& to) {
  const ValueLayout layout = Rounded::LayoutOf(head);
  bool finite = true;
  ForVectors(head.value_dim, [&]<int kVectors>(std::int64_t c) {
    Integers distance[kVectors];
    const Columns<kVectors> columns{head.value + c, head.value_stride, head.value_dim - c};
    columns.Measure(head.length, to.value_mean + c, distance);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const std::int64_t column = c + v * kWidth;
      finite = finite && Simd::Largest(distance[v]) < 0x7F800000;
      const Vector size = Simd::FloatOfBits(distance[v]), least = Simd::Set(kLeastSize);
      const Vector mean = Simd::Load(to.value_mean + column), highest = Simd::Set(kHighest);
      const Vector inverse =
          Simd::WhereGreater(least, size, Simd::Zero(), Simd::Div(highest, size));
      Simd::Store(to.value_scale + column, Simd::Div(size, highest));
      const auto number = [&](std::int64_t j) {
        if (j >= head.length) return Simd::Set(0);
        return Rounding(Simd::Sub(columns.Load(j, v), mean), inverse);
      };
      const auto four_keys = [&](std::int64_t j) {
        const Integers first = _mm512_packs_epi32(number(j), number(j + 1));
        return PackBytes<true>(first, _mm512_packs_epi32(number(j + 2), number(j + 3)));
      };
      for (std::int64_t j = 0; j < head.length; j += ValueLayout::kKeys) {
        layout.Store(to.values, j, column, four_keys);
      }
    }
  });
  return finite;
}

void RoundHead(const Head& head, std::byte* memory) {
  const Rounded to(head, memory);
  *to.key_factor = RoundKeys(head, to.keys);
  if (to.usable() && !RoundValues(head, to)) *to.key_factor = kNan;
}

// Row i of 16 from lane `lane` on: its numbers, and what 1 of its scores is worth. A row whose step
// would be less than the least, with scores near 0, uses fewer of its bits instead.
inline void RoundQuery(const Head& head, float key_factor, const float* row, std::int64_t lane,
                       std::int64_t i, const Int8Scratch& scratch) {
  const std::int64_t padded = Padded(head.head_dim);
  Integers most = Simd::Set(0);
  for (std::int64_t c = 0; c < head.head_dim; c += kWidth) {
    const Vector x = Simd::LoadFirst(row + c, Smaller(head.head_dim - c, kWidth));
    most = Simd::Max(most, Simd::AbsBits(x));
  }
  const float size = __builtin_bit_cast(float, Simd::Largest(most));
  const float step = size * __builtin_fabsf(key_factor) / kHighest;
  const bool finite = size <= kLargestFloat, usual = step >= kLeastStep;
  const float inverse =
      usual ? __builtin_copysignf(kHighest / size, key_factor) : key_factor / kLeastStep;
  scratch.step[lane + i] = !usual ? kLeastStep : step < kMostStep ? step : kMostStep;
  scratch.poison[lane + i] = finite ? 1.0f : kNan;
  for (std::int64_t c = 0; c < padded; c += kWidth) {
    const Vector x = Simd::LoadFirst(row + c, Smaller(head.head_dim - c, kWidth));
    const Integers number = Rounding(x, Simd::Set(finite ? inverse : 0.0f));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(scratch.rows + i * padded + c),
                     _mm512_cvtsepi32_epi8(number));
  }
}

// Rows [begin, begin + count) across the lanes, lanes beyond the last row repeat it; nothing is
// summed yet.
inline void RoundQueries(const Head& head, float key_factor, std::int64_t begin, std::int64_t count,
                         std::int64_t pitch, const Int8Scratch& scratch) {
  const std::int64_t padded = Padded(head.head_dim);
  for (std::int64_t lane = 0; lane < pitch; lane += kWidth) {
    for (std::int64_t i = 0; i < kWidth; ++i) {
      const std::int64_t row = begin + Smaller(lane + i, count - 1);
      RoundQuery(head, key_factor, head.query + row * head.query_stride, lane, i, scratch);
    }
    Integers total = Simd::Set(0);
    for (std::int64_t k = 0; k < padded; k += 16) {
      Vector fours[4];  // of bytes
      Simd::Transpose4(
          [&](int i) { return reinterpret_cast<const float*>(scratch.rows + i * padded + k); },
          fours);
#pragma GCC unroll 4
      for (int c = 0; c < 4; ++c) {
        const Integers numbers = _mm512_castps_si512(fours[c]);
        _mm512_storeu_si512(scratch.query + (k + 4 * c) * pitch + lane * 4, numbers);
        Dot(total, _mm512_set1_epi8(-128), numbers);
      }
    }
    Simd::Store(scratch.start + lane, Simd::Sub(Simd::Set(kMagicBits), total));
    Simd::Store(scratch.maximum + lane, Simd::Set(kLowest));
    Simd::Store(scratch.sum + lane, Simd::Zero());
    Simd::Store(scratch.lost + lane, Simd::Zero());
  }
}
