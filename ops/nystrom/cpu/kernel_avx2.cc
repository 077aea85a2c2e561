#include "ops/common/simd/avx2.h"
// The Simd above comes first: the rest is written in terms of it.
#include "ops/nystrom/cpu/kernel.inl"

namespace attenuator::nystrom {

const Kernels& KernelsAvx2() { return kKernels; }

}  // namespace attenuator::nystrom
