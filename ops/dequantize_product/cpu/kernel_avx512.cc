#include "ops/common/simd/avx512.h"
// The Simd above comes first: the rest is written in terms of it.
#include "ops/dequantize_product/cpu/kernel.inl"

namespace attenuator::dequantize_product {

Kernel KernelAvx512(Activation activation) { return KernelOf(activation); }

}  // namespace attenuator::dequantize_product
