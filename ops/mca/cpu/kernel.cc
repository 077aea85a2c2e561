#include "ops/mca/cpu/kernel.h"

#include "ops/common/cpu.h"

namespace attenuator::mca {

const ProjectionKernels& Projection() {
  static const ProjectionKernels& kernels =
      CpuIsa() >= Isa::kAvx512 ? ProjectionAvx512() : ProjectionAvx2();
  return kernels;
}

}  // namespace attenuator::mca
