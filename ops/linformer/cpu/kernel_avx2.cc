#include "ops/common/simd/avx2.h"
// The Simd above comes first: the rest is written in terms of it.
#include "ops/linformer/cpu/kernel.inl"

namespace attenuator::linformer {

Project ProjectAvx2() { return &ProjectRows; }

}  // namespace attenuator::linformer
