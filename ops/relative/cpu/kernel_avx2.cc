#include "ops/common/simd/avx2.h"
// The Simd above comes first: the rest is written in terms of it.
#include "ops/relative/cpu/kernel.inl"

namespace attenuator::relative {

const Kernels& KernelsAvx2() { return kKernels; }

}  // namespace attenuator::relative
