#include "ops/softmax/simd_avx512.h"
// Simd comes first.
#include "ops/mca/kernel_cpu.inl"

namespace attenuator {
namespace {

std::int64_t Narrow(float r, std::int64_t count, std::int32_t* columns, float* reach,
                    float* inverse_p) {
  const __m512 limit = _mm512_set1_ps(r);
  std::int64_t kept = 0;
  for (std::int64_t i = 0; i < count; i += 16) {
    const __mmask16 valid =
        count - i < 16 ? static_cast<__mmask16>((1u << (count - i)) - 1u) : 0xFFFF;
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
  static constexpr ProjectionKernels kKernels{Exact, Sampled, Narrow, Finite, ColumnSums, RowNorms};
  return kKernels;
}

}  // namespace attenuator
