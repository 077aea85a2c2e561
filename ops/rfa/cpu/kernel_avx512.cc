#include "ops/common/simd/blocks_avx512.h"
// The Simd above comes first: the rest is written in terms of it.
#include "ops/rfa/cpu/kernel.inl"

namespace attenuator::rfa {

const Kernels& KernelsAvx512() { return kKernels; }

}  // namespace attenuator::rfa
