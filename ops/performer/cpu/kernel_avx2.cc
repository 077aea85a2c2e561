#include "ops/common/simd/blocks_avx2.h"
// The Simd above comes first: the rest is written in terms of it.
#include "ops/performer/cpu/kernel.inl"

namespace attenuator::performer {

const Kernels& KernelsAvx2() { return kKernels; }

}  // namespace attenuator::performer
