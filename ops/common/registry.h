// What each operator's folder defines for the hosts: how its kernel is made, and where its spec has
// `own_isa`, which instruction set it uses.
#pragma once

#include <memory>

#include "operators.gen.h"
#include "ops/common/context.h"
#include "ops/common/cpu.h"

namespace attenuator {

// Defined in ops/<operator>/operator.cc, specialised for its Spec.
template <class Spec>
std::unique_ptr<Kernel> MakeKernel(const NodeReader& reader);

template <class Spec>
Isa OwnIsa();

#define ATTENUATOR_DECLARE(Op)                                            \
  template <>                                                             \
  std::unique_ptr<Kernel> MakeKernel<spec::Op>(const NodeReader& reader); \
  template <>                                                             \
  Isa OwnIsa<spec::Op>();
ATTENUATOR_OPERATORS(ATTENUATOR_DECLARE)
#undef ATTENUATOR_DECLARE

// The best instruction set that an operator uses on this processor.
template <class Spec>
Isa BestIsa() {
  if constexpr (Spec::kOwnIsa) {
    return OwnIsa<Spec>();
  } else {
    return CpuIsa();
  }
}

}  // namespace attenuator
