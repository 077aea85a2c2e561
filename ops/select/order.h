// The order of importances as an order of integers, the same on the CPU and on CUDA.
#pragma once

#include <cstdint>

#include "ops/common/host_device.h"

namespace attenuator::select {

// Maps the bits of a float so that unsigned integers order as the numbers do: NaN above +infinity,
// -0 as +0. No arithmetic on the number itself, so denormal ones keep their place whatever the
// processor does with them.
ATTENUATOR_HOST_DEVICE inline std::uint32_t Order(std::uint32_t bits) {
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0xffffffffu;
  if (magnitude == 0) return 0x80000000u;
  return bits == magnitude ? bits | 0x80000000u : ~bits;
}

}  // namespace attenuator::select
