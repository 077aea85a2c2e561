// YosoAttention's kernels for AVX-512 with VNNI. See ops/common/cpu.h for what such a file may use.
#include <immintrin.h>

#include "ops/common/philox_lanes.h"
#include "ops/common/simd/blocks_avx512.h"
#include "ops/yoso/cpu/kernel.h"

namespace attenuator::yoso {
namespace {

#include "ops/yoso/cpu/count_avx512.inl"
//
#include "ops/yoso/cpu/dot_vnni.inl"
//
#include "ops/yoso/cpu/stream.inl"
//
#include "ops/yoso/cpu/hash.inl"
//
#include "ops/yoso/cpu/hadamard.inl"
//
#include "ops/yoso/cpu/table.inl"
//
#include "ops/yoso/cpu/dense.inl"

}  // namespace

const Kernels avx512_vnni::kKernels = {
    100,          DrawStream, PlaneBytes,         PackPlanes,         HashGaussian,
    HashHadamard, PackValues, RunTables,          UnpackSums,         CountAndSum,
    Multiply,     UnitRows,   UnitRowsTransposed, ExpectedCollisions, Finish,
    Convolve};

}  // namespace attenuator::yoso
