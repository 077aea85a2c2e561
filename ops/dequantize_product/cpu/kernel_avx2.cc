#include "ops/common/simd/avx2.h"
// The Simd above comes first: the rest is written in terms of it.
#include "ops/dequantize_product/cpu/kernel.inl"

namespace attenuator::dequantize_product {

Kernel KernelAvx2(Activation activation) { return KernelOf(activation); }

}  // namespace attenuator::dequantize_product
