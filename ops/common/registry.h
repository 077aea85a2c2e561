// The one function each operator's folder defines for the hosts: how its kernel is made.
#pragma once

#include <memory>

#include "operators.gen.h"
#include "ops/common/context.h"

namespace attenuator {

// Defined in ops/<operator>/operator.cc, specialised for its Spec.
template <class Spec>
std::unique_ptr<Kernel> MakeKernel(const NodeReader& reader);

#define ATTENUATOR_DECLARE(Op) \
  template <>                  \
  std::unique_ptr<Kernel> MakeKernel<spec::Op>(const NodeReader& reader);
ATTENUATOR_OPERATORS(ATTENUATOR_DECLARE)
#undef ATTENUATOR_DECLARE

}  // namespace attenuator
