// YosoAttention's kernels for AVX-512 with VNNI. See ops/common/cpu.h for what such a file may use.
#include <immintrin.h>

#include "ops/common/philox_lanes.h"
#include "ops/common/simd_avx512.h"
#include "ops/yoso/kernel.h"

namespace attenuator::yoso {
namespace {

#include "ops/yoso/vector_avx512.inl"
//
#include "ops/yoso/dot_vnni.inl"
//
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
