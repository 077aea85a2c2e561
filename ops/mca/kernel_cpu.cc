#include "ops/common/cpu.h"
#include "ops/mca/kernel.h"

namespace attenuator {

const ProjectionKernels& Projection() {
  static const ProjectionKernels& kernels =
      CpuIsa() >= Isa::kAvx512 ? ProjectionAvx512() : ProjectionAvx2();
  return kernels;
}

}  // namespace attenuator
