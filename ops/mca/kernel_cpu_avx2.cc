#include "ops/softmax/simd_avx2.h"
// Simd comes first.
#include "ops/mca/kernel_cpu.inl"

namespace attenuator {
namespace {

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
  static constexpr ProjectionKernels kKernels{Exact, Sampled, Narrow, Finite, ColumnSums, RowNorms};
  return kKernels;
}

}  // namespace attenuator
