#include "ops/common/simd/avx2.h"
// The Simd above comes first: the rest is written in terms of it.
#include "ops/common/attention/cpu/attention.inl"

namespace attenuator::attention {

const Kernels& KernelsAvx2() { return kKernels; }

}  // namespace attenuator::attention
