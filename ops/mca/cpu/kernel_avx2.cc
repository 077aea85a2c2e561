#include "ops/common/simd/avx2.h"
// Simd comes first.
#include "ops/mca/cpu/kernel.inl"

namespace attenuator::mca {
namespace {

// The lower halves of the lanes as floats, rounded once: the upper 16 bits alone are exact.
__m128 Floats(__m256i words) {
  const __m256i order = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
  const __m128i x = _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(words, order));
  const __m128 high = _mm_cvtepi32_ps(_mm_srli_epi32(x, 16));
  const __m128 low = _mm_cvtepi32_ps(_mm_and_si128(x, _mm_set1_epi32(0xFFFF)));
  return _mm_add_ps(_mm_mul_ps(high, _mm_set1_ps(65536.0f)), low);
}

void Draw(std::int64_t seed, std::uint32_t layer, std::uint32_t head, std::int64_t channels,
          const float* inverse_p, float* reach) {
  for (std::int64_t k = 0; k < channels; k += 4 * WideLanes::kCount) {
    __m256i words[4];
    PhiloxLanes<WideLanes>(seed, layer, head, Stream::kMcaSamples,
                           static_cast<std::uint64_t>(k / 4), words);
    __m128 a = Floats(words[0]), b = Floats(words[1]), c = Floats(words[2]), d = Floats(words[3]);
    _MM_TRANSPOSE4_PS(a, b, c, d);
    _mm_storeu_ps(reach + k, a);
    _mm_storeu_ps(reach + k + 4, b);
    _mm_storeu_ps(reach + k + 8, c);
    _mm_storeu_ps(reach + k + 12, d);
  }
  ScaleReach(channels, inverse_p, reach);
}

std::int64_t Part(float r, std::int64_t count, const std::int32_t* columns, const float* inverse_p,
                  std::int32_t* certain, std::int32_t* partial) {
  std::int64_t sure = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    certain[sure] = columns[i];
    partial[i - sure] = columns[i];
    sure += inverse_p[i] <= r;
  }
  return sure;
}

std::int64_t Narrow(float r, std::int64_t count, std::int32_t* columns, float* reach,
                    float* inverse_p) {
  std::int64_t kept = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const float v = reach[i];
    reach[kept] = v;
    columns[kept] = columns[i];
    inverse_p[kept] = inverse_p[i];
    kept += v <= r;
  }
  return kept;
}

}  // namespace

const ProjectionKernels& ProjectionAvx2() {
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
