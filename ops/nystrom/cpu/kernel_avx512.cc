#include "ops/common/simd/avx512.h"
// The Simd above comes first: the rest is written in terms of it.
#include "ops/nystrom/cpu/kernel.inl"

namespace attenuator::nystrom {

const Kernels& KernelsAvx512() { return kKernels; }

}  // namespace attenuator::nystrom
