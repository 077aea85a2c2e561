#include "ops/common/simd/avx512.h"
// The Simd above comes first: the rest is written in terms of it.
#include "ops/common/attention/cpu/attention.inl"

namespace attenuator::attention {

const Kernels& KernelsAvx512() { return kKernels; }

}  // namespace attenuator::attention
