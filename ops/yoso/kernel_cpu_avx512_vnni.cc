// YosoAttention's kernels for AVX-512 with VNNI. See ops/common/cpu.h for what such a file may use.
#include <immintrin.h>

#include "ops/common/philox_lanes.h"
#include "ops/common/simd_avx512.h"
#include "ops/yoso/kernel.h"

namespace attenuator::yoso {
namespace {

#include "ops/yoso/vector_avx512.inl"

// u8 planes times s8 data, four products a lane, no saturation: vpdpbusd.
using Datum = std::int8_t;
using PlaneDatum = std::uint8_t;
inline constexpr int kStepDims = 4;

inline void StoreData(Datum* p, IntVec a) { StoreInt8(p, a); }
// Not the intrinsic: GCC 12 then copies every accumulator before and after, which costs a quarter.
inline void Dot(IntVec& sums, IntVec planes, IntVec data) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sums.v) : "v"(planes.v), "v"(data.v));
}

#include "ops/yoso/stream.inl"
//
#include "ops/yoso/hash.inl"
//
#include "ops/yoso/hadamard.inl"
//
#include "ops/yoso/table.inl"
//
#include "ops/yoso/dense.inl"

}  // namespace

const Kernels avx512_vnni::kKernels = {
    100,          DrawStream, PlaneBytes,         PackPlanes,         HashGaussian,
    HashHadamard, PackValues, RunTables,          UnpackSums,         CountAndSum,
    Multiply,     UnitRows,   UnitRowsTransposed, ExpectedCollisions, Finish,
    Convolve};

}  // namespace attenuator::yoso
