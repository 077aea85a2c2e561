// Chooses the kernels once; portable, so that it also runs where AVX-512 does not exist.
#include "ops/common/cpu.h"
#include "ops/yoso/kernel.h"

namespace attenuator::yoso {

const Kernels& CpuKernels() {
  switch (CpuIsa()) {
    case Isa::kAvx2:
      return avx2::kKernels;
    case Isa::kAvx512:
      return avx512::kKernels;
    default:
      return avx512_vnni::kKernels;
  }
}

}  // namespace attenuator::yoso
