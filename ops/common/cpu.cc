#include "ops/common/cpu.h"

#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

namespace attenuator {
namespace {

constexpr const char* kNames[] = {"avx2", "avx512", "avx512_vnni"};

Isa Detect() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
    throw std::runtime_error("attenuator's CPU operators need a processor with AVX2 and FMA");
  }
  Isa isa = Isa::kAvx2;
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    isa = Isa::kAvx512;
    if (__builtin_cpu_supports("avx512vnni")) isa = Isa::kAvx512Vnni;
  }
  const char* wanted = std::getenv("ATTENUATOR_ISA");
  if (wanted == nullptr || *wanted == '\0') return isa;
  for (int i = 0; i < 3; ++i) {
    if (std::strcmp(wanted, kNames[i]) == 0)
      return i < static_cast<int>(isa) ? static_cast<Isa>(i) : isa;
  }
  throw std::runtime_error(std::string("ATTENUATOR_ISA is '") + wanted +
                           "', must be avx2, avx512 or avx512_vnni");
}

}  // namespace

Isa CpuIsa() {
  static const Isa isa = Detect();
  return isa;
}

const char* IsaName(Isa isa) { return kNames[static_cast<int>(isa)]; }

}  // namespace attenuator
