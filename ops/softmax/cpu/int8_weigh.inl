// Rows and keys that are computed together, and the weights between the two products.
// Included inside the anonymous namespace of int8_avx512_vnni.cc and int8_avx512_amx.cc.

// Rows from `begin` on that are computed together.
struct Rows {
  std::int64_t begin;
  std::int64_t count;
  std::int64_t pitch;  // count in whole vectors
};

// Keys [first, last), in whole fours from `low` on.
struct Keys {
  std::int64_t first;
  std::int64_t last;
  std::int64_t low;
  std::int64_t count;

  Keys(std::int64_t from, std::int64_t to)
      : first(from), last(to), low(from / 4 * 4), count(Fours(to) - low) {}
};

// 2^-(z / 32) * 255 * 128 of words z from 0 on: 32nds from a table, the rest by a shift.
[[gnu::always_inline]] inline Integers Power(Integers z, Integers table) {
  return _mm512_srlv_epi16(_mm512_permutexvar_epi16(z, table), _mm512_srli_epi16(z, 5));
}

// 128ths of a weight as whole ones, rounded.
[[gnu::always_inline]] inline Integers WholeOf(Integers power) {
  return _mm512_mulhrs_epi16(power, _mm512_set1_epi16(256));
}

// What rounding took from a weight, in 128ths.
[[gnu::always_inline]] inline Integers RestOf(Integers power, Integers whole) {
  return _mm512_sub_epi16(power, _mm512_slli_epi16(whole, 7));
}

// round(255 * 128 * 2^-(i / 32)).
alignas(64) constexpr std::int16_t kPowers[32] = {
    32640, 31941, 31256, 30586, 29931, 29290, 28662, 28048, 27447, 26859, 26283,
    25720, 25169, 24630, 24102, 23585, 23080, 22585, 22101, 21628, 21164, 20711,
    20267, 19833, 19408, 18992, 18585, 18187, 17797, 17416, 17043, 16677};

// Weights of `keys` keys, a multiple of 4, for kVectors vectors of lanes; kSome: some are not seen.
template <bool kSome, int kVectors>
[[gnu::always_inline]] inline void WeighLanes(std::int64_t lane, std::int64_t keys,
                                              std::int64_t pitch, const std::int32_t* scores,
                                              std::uint8_t* weights, const Int8Scratch& scratch) {
  const Integers table = _mm512_load_si512(kPowers), ones = _mm512_set1_epi8(1);
  Vector step[kVectors], top[kVectors];
  Integers total[kVectors], rest[kVectors];
#pragma GCC unroll 2
  for (int v = 0; v < kVectors; ++v) {
    const std::int64_t at = lane + v * kWidth;
    const Vector thirty_seconds = Simd::Mul(Simd::Load(scratch.step + at), Simd::Set(32.0f));
    step[v] = Simd::Sub(Simd::Zero(), thirty_seconds);
    top[v] = Simd::Mul(Simd::FloatOfBits(Simd::Load(scratch.most + at)), thirty_seconds);
    total[v] = rest[v] = Simd::Set(0);
  }
  for (std::int64_t j = 0; j < keys; j += 4) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      const std::int32_t* from = scores + j * pitch + lane + v * kWidth;
      Integers below[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const Integers score = Simd::Load(from + i * pitch);
        below[i] = Simd::Round(Simd::Fma(Simd::FloatOfBits(score), step[v], top[v]));
        if constexpr (kSome) {
          const __mmask16 unseen = _mm512_movepi32_mask(score);
          below[i] = _mm512_mask_mov_epi32(below[i], unseen, Simd::Set(0xFFFF));
        }
      }
      const Integers first = Power(_mm512_packus_epi32(below[0], below[1]), table);
      const Integers second = Power(_mm512_packus_epi32(below[2], below[3]), table);
      const Integers whole_first = WholeOf(first), whole_second = WholeOf(second);
      const Integers bytes = PackBytes<false>(whole_first, whole_second);
      Dot(total[v], bytes, ones);
      Dot(rest[v], ones, PackBytes<true>(RestOf(first, whole_first), RestOf(second, whole_second)));
      _mm512_storeu_si512(weights + j * pitch + (lane + v * kWidth) * 4, bytes);
    }
  }
#pragma GCC unroll 2
  for (int v = 0; v < kVectors; ++v) {
    Simd::Store(scratch.total + lane + v * kWidth, total[v]);
    Simd::Store(scratch.rest + lane + v * kWidth, rest[v]);
  }
}

// Takes a key block's weights, each times 2^term, into the running maximum and sums.
inline void TakeWeights(std::int64_t pitch, float term, float* tops, const Int8Scratch& scratch) {
  const Vector one = Simd::Set(1.0f), least = Simd::Set(-125.99f);
  for (std::int64_t lane = 0; lane < pitch; lane += kWidth) {
    const Vector most = Simd::FloatOfBits(Simd::Load(scratch.most + lane));
    const Vector top = Simd::Fma(Simd::Sub(most, Simd::Set(kMagic)),
                                 Simd::Load(scratch.step + lane), Simd::Set(term));
    const Vector old = Simd::Load(scratch.maximum + lane), now = Simd::Max(top, old);
    const Vector old_factor = Simd::Exp2(Simd::Sub(old, now), one, least);
    const Vector new_factor = Simd::Exp2(Simd::Sub(top, now), one, least);
    const Vector total = Simd::FloatOf(Simd::Load(scratch.total + lane));
    Simd::Store(scratch.sum + lane, Simd::Fma(Simd::Load(scratch.sum + lane), old_factor,
                                              Simd::Mul(total, new_factor)));
    const Vector lost = Simd::Abs(Simd::FloatOf(Simd::Load(scratch.rest + lane)));
    Simd::Store(scratch.lost + lane, Simd::Fma(Simd::Load(scratch.lost + lane), old_factor,
                                               Simd::Mul(lost, new_factor)));
    Simd::Store(scratch.maximum + lane, now);
    Simd::Store(scratch.old_factor + lane, old_factor);
    Simd::Store(scratch.new_factor + lane, new_factor);
    if (tops != nullptr) Simd::Store(tops + lane, top);
  }
}
