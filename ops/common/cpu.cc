#include "ops/common/cpu.h"

#include <cstdlib>
#include <cstring>
#include <iterator>
#include <stdexcept>
#include <string>

#include "ops/common/amx.h"

namespace attenuator {
namespace {

constexpr const char* kNames[] = {"avx2", "avx512", "avx512_vnni", "avx512_amx"};

// What ATTENUATOR_ISA allows at most.
Isa Highest() {
  const char* requested = std::getenv("ATTENUATOR_ISA");
  if (requested == nullptr || *requested == '\0') return Isa::kAvx512Amx;
  for (std::size_t i = 0; i < std::size(kNames); ++i) {
    if (std::strcmp(requested, kNames[i]) == 0) return static_cast<Isa>(i);
  }
  throw std::runtime_error(std::string("ATTENUATOR_ISA is '") + requested +
                           "', must be avx2, avx512, avx512_vnni or avx512_amx");
}

Isa Detect() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
    throw std::runtime_error(
        "the processor lacks AVX2 or FMA: attenuator's CPU operators need both");
  }
  const Isa highest = Highest();
  if (highest < Isa::kAvx512 || !__builtin_cpu_supports("avx512f") ||
      !__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512dq") ||
      !__builtin_cpu_supports("avx512vl")) {
    return Isa::kAvx2;
  }
  if (highest < Isa::kAvx512Vnni || !__builtin_cpu_supports("avx512vnni")) return Isa::kAvx512;
  return Isa::kAvx512Vnni;
}

}  // namespace

Isa CpuIsa() {
  static const Isa isa = Detect();
  return isa;
}

bool CpuHasAmx() {
#ifdef ATTENUATOR_AMX
  static const bool has =
      CpuIsa() == Isa::kAvx512Vnni && Highest() == Isa::kAvx512Amx && EnableAmx();
  return has;
#else
  return false;
#endif
}

const char* IsaName(Isa isa) { return kNames[static_cast<int>(isa)]; }

}  // namespace attenuator
