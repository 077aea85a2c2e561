#include "ops/common/simd/avx2.h"
// The Simd above comes first: the rest is written in terms of it.
#include "ops/longshort/cpu/kernel.inl"

namespace attenuator::longshort {

Normalise NormaliseAvx2() { return &NormaliseRows; }

}  // namespace attenuator::longshort
