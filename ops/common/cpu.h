// Which instruction set the kernels use, found once at run time.
//
// One translation unit per instruction set holds intrinsics (kernel_avx2.cc, _avx512.cc, ...:
// CMake gives each its flags by its suffix); portable files never see -march flags. Such a unit
// keeps to functions of internal linkage and its own entry points, and uses no inline function of
// the standard library that is not a compiler builtin: the linker may pick its copy, with
// instructions the machine lacks, for everyone.
#pragma once

namespace attenuator {

enum class Isa { kAvx2, kAvx512, kAvx512Vnni, kAvx512Amx };  // each includes those before it

// The best set this machine has up to AVX-512 VNNI, lowered by the environment variable
// ATTENUATOR_ISA (avx2, avx512, avx512_vnni, avx512_amx), which exists so that tests and benchmarks
// reach every path. Throws std::runtime_error where not even AVX2 and FMA are there, or where the
// variable holds another word.
Isa CpuIsa();

// Whether AMX may be used as well. Not part of CpuIsa(): a process has to request AMX from the
// system (EnableAmx, amx.h), and only operators that use tiles should. Requests it once.
bool CpuHasAmx();

// `avx2`, `avx512`, `avx512_vnni` or `avx512_amx`.
const char* IsaName(Isa isa);

}  // namespace attenuator
