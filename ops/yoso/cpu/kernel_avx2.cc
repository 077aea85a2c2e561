// YosoAttention's kernels for AVX2 and FMA. See ops/common/cpu.h for what such a file may use.
#include <immintrin.h>

#include "ops/common/philox_lanes.h"
#include "ops/common/simd/blocks_avx2.h"
// The Simd above comes first.
#include "ops/common/attention/cpu/convolution.inl"
#include "ops/yoso/cpu/kernel.h"

namespace attenuator::yoso {
namespace {

#include "ops/yoso/cpu/count_avx2.inl"
#include "ops/yoso/cpu/dot_avx2.inl"
//
#include "ops/yoso/cpu/stream.inl"
//
#include "ops/yoso/cpu/hash.inl"
//
#include "ops/yoso/cpu/hadamard.inl"
//
#include "ops/yoso/cpu/bucket.inl"
//
#include "ops/yoso/cpu/table.inl"
//
#include "ops/yoso/cpu/angle.inl"
//
#include "ops/yoso/cpu/shorts_avx2.inl"
//
#include "ops/yoso/cpu/rounded.inl"
//
#include "ops/yoso/cpu/dense.inl"

}  // namespace

const Kernels avx2::kKernels = {
    .count_percent = 50,
    .stream = DrawStream,
    .plane_bytes = PlaneBytes,
    .pack_planes = PackPlanes,
    .hash_gaussian = HashGaussian,
    .hash_hadamard = HashHadamard,
    .pack_values = PackValues,
    .run_tables = RunTables,
    .round_values = RoundValues,
    .run_rounded = RunRounded,
    .unpack_sums = UnpackSums,
    .count_and_sum = CountAndSum,
    .multiply = Multiply,
    .unit_rows = UnitRows,
    .unit_rows_transposed = UnitRowsTransposed,
    .expected_collisions = ExpectedCollisions,
    .finish = Finish,
    .convolve = Convolve,
};

}  // namespace attenuator::yoso
