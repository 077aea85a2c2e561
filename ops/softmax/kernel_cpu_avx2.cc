#include "ops/common/simd_avx2.h"
// The Simd above comes first: the rest is written in terms of it.
#include "ops/softmax/kernel_cpu.inl"

namespace attenuator {

const SoftmaxKernels& SoftmaxKernelsAvx2() { return kKernels; }

}  // namespace attenuator
