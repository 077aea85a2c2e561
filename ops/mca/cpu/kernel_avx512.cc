#include "ops/common/simd/avx512.h"
// Simd comes first.
#include "ops/mca/cpu/kernel.inl"

namespace attenuator::mca {
namespace {

// The lanes of the next 16 entries that are there, where `count` are left.
__mmask16 Remaining(std::int64_t count) { return Simd::First(count < 16 ? count : 16); }

void Draw(std::int64_t seed, std::uint32_t layer, std::uint32_t head, std::int64_t channels,
          const float* inverse_p, float* reach) {
  const __m512i low = _mm512_set1_epi64(0xFFFFFFFFll);
  for (std::int64_t k = 0; k < channels; k += 4 * WideLanes::kCount) {
    __m512i words[4];
    PhiloxLanes<WideLanes>(seed, layer, head, Stream::kMcaSamples,
                           static_cast<std::uint64_t>(k / 4), words);
    __m256 f[4];
    for (int w = 0; w < 4; ++w) f[w] = _mm512_cvtepu64_ps(_mm512_and_si512(words[w], low));
    const __m256d a = _mm256_castps_pd(_mm256_unpacklo_ps(f[0], f[1]));
    const __m256d b = _mm256_castps_pd(_mm256_unpackhi_ps(f[0], f[1]));
    const __m256d c = _mm256_castps_pd(_mm256_unpacklo_ps(f[2], f[3]));
    const __m256d d = _mm256_castps_pd(_mm256_unpackhi_ps(f[2], f[3]));
    // Blocks 0 and 4, 1 and 5, 2 and 6, 3 and 7.
    const __m256 blocks[4] = {
        _mm256_castpd_ps(_mm256_unpacklo_pd(a, c)), _mm256_castpd_ps(_mm256_unpackhi_pd(a, c)),
        _mm256_castpd_ps(_mm256_unpacklo_pd(b, d)), _mm256_castpd_ps(_mm256_unpackhi_pd(b, d))};
    for (int i = 0; i < 4; ++i) {
      _mm_storeu_ps(reach + k + 4 * i, _mm256_castps256_ps128(blocks[i]));
      _mm_storeu_ps(reach + k + 16 + 4 * i, _mm256_extractf128_ps(blocks[i], 1));
    }
  }
  ScaleReach(channels, inverse_p, reach);
}

std::int64_t Part(float r, std::int64_t count, const std::int32_t* columns, const float* inverse_p,
                  std::int32_t* certain, std::int32_t* partial) {
  const __m512 limit = _mm512_set1_ps(r);
  std::int64_t sure = 0, rest = 0;
  for (std::int64_t i = 0; i < count; i += 16) {
    const __mmask16 valid = Remaining(count - i);
    const __m512i k = _mm512_maskz_loadu_epi32(valid, columns + i);
    const __mmask16 is_certain = _mm512_mask_cmp_ps_mask(
        valid, _mm512_maskz_loadu_ps(valid, inverse_p + i), limit, _CMP_LE_OQ);
    const __mmask16 is_partial = static_cast<__mmask16>(valid & ~is_certain);
    _mm512_mask_storeu_epi32(certain + sure, valid, _mm512_maskz_compress_epi32(is_certain, k));
    _mm512_mask_storeu_epi32(partial + rest, valid, _mm512_maskz_compress_epi32(is_partial, k));
    sure += __builtin_popcount(is_certain);
    rest += __builtin_popcount(is_partial);
  }
  return sure;
}

std::int64_t Narrow(float r, std::int64_t count, std::int32_t* columns, float* reach,
                    float* inverse_p) {
  const __m512 limit = _mm512_set1_ps(r);
  std::int64_t kept = 0;
  for (std::int64_t i = 0; i < count; i += 16) {
    const __mmask16 valid = Remaining(count - i);
    const __m512 v = _mm512_maskz_loadu_ps(valid, reach + i);
    const __m512i k = _mm512_maskz_loadu_epi32(valid, columns + i);
    const __m512 p = _mm512_maskz_loadu_ps(valid, inverse_p + i);
    const __mmask16 keep = _mm512_mask_cmp_ps_mask(valid, v, limit, _CMP_LE_OQ);
    const int number = __builtin_popcount(keep);
    // Compressed in a register: compressing stores are slow on some processors. The tail of a store
    // falls on entries that were read already.
    _mm512_mask_storeu_ps(reach + kept, valid, _mm512_maskz_compress_ps(keep, v));
    _mm512_mask_storeu_epi32(columns + kept, valid, _mm512_maskz_compress_epi32(keep, k));
    _mm512_mask_storeu_ps(inverse_p + kept, valid, _mm512_maskz_compress_ps(keep, p));
    kept += number;
  }
  return kept;
}

}  // namespace

const ProjectionKernels& ProjectionAvx512() {
  static constexpr ProjectionKernels kKernels{
      .exact = Exact,
      .sampled = Sampled,
      .draw = Draw,
      .narrow = Narrow,
      .part = Part,
      .finite = Finite,
      .moments = Moments,
      .distances = Distances,
      .exact_norms = ExactNorms,
  };
  return kKernels;
}

}  // namespace attenuator::mca
