#include "ops/common/cpu.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

namespace attenuator {
namespace {

constexpr const char* kNames[] = {"avx2", "avx512", "avx512_vnni", "amx"};

// The kernel hands out AMX tile state (feature 18) only to processes that ask; without the request
// a tile instruction ends the process.
bool AmxGranted() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

Isa Detect() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
    throw std::runtime_error("attenuator's CPU operators need a processor with AVX2 and FMA");
  }
  Isa isa = Isa::kAvx2;
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    isa = Isa::kAvx512;
    if (__builtin_cpu_supports("avx512vnni")) {
      isa = Isa::kAvx512Vnni;
      if (__builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-int8") &&
          AmxGranted()) {
        isa = Isa::kAmx;
      }
    }
  }
  const char* wanted = std::getenv("ATTENUATOR_ISA");
  if (wanted == nullptr || *wanted == '\0') return isa;
  for (int i = 0; i < 4; ++i) {
    if (std::strcmp(wanted, kNames[i]) == 0)
      return i < static_cast<int>(isa) ? static_cast<Isa>(i) : isa;
  }
  throw std::runtime_error(std::string("ATTENUATOR_ISA is '") + wanted +
                           "', must be avx2, avx512, avx512_vnni or amx");
}

}  // namespace

Isa CpuIsa() {
  static const Isa isa = Detect();
  return isa;
}

const char* IsaName(Isa isa) { return kNames[static_cast<int>(isa)]; }

}  // namespace attenuator
