#include "ops/common/amx.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef ATTENUATOR_AMX_EMULATED
#include "tests/ops/amx_emulator.h"
#endif

namespace attenuator {
namespace {

// Instructions, a system that saves tiles, and tiles of the shape that TileConfig's palette
// promises.
bool HasAmx() {
  constexpr unsigned kTileAndInt8 = 1u << 24 | 1u << 25;
  constexpr unsigned kTileState = 1u << 17 | 1u << 18;  // XTILECFG, XTILEDATA
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d) || (c & bit_OSXSAVE) == 0) return false;
  unsigned enabled = 0, high = 0;
  asm("xgetbv" : "=a"(enabled), "=d"(high) : "c"(0));
  if ((enabled & kTileState) != kTileState) return false;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & kTileAndInt8) != kTileAndInt8) return false;
  if (!__get_cpuid_count(0x1D, 1, &a, &b, &c, &d) || (b & 0xFFFF) < kTileBytes || b >> 16 < 8 ||
      (c & 0xFFFF) < kTileRows) {
    return false;
  }
  return __get_cpuid_count(0x1E, 0, &a, &b, &c, &d) && (b & 0xFF) >= kTileRows &&
         (b >> 8 & 0xFFFF) >= kTileBytes;
}

}  // namespace

bool EnableAmx() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM, Linux 5.16
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  if (HasAmx()) return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#ifdef ATTENUATOR_AMX_EMULATED
  return InstallAmxEmulator();
#else
  return false;
#endif
}

}  // namespace attenuator
