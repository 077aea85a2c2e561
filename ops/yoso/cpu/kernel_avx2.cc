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

// 16-bit planes times 16-bit data, two products a lane, exact in 32 bits: vpmaddwd. (Products of
// bytes through vpmaddubsw would saturate at 255 * 127 * 2.)
using Datum = std::int16_t;
using PlaneDatum = std::int16_t;
inline constexpr int kStepDims = 2;

inline void StoreData(Datum* p, Ints a) { StoreInt16(p, a); }
inline void StoreData(Datum* p, const Ints (&a)[4]) {
  for (int i = 0; i < 4; ++i) StoreInt16(p + i * kBlock, a[i]);
}
// Not intrinsics: GCC 12 then keeps so many products in flight that an accumulator goes to memory,
// which doubles the time.
inline void Dot(__m256i& sums, __m256i planes, __m256i data) {
  __m256i products;
  asm("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0"
      : "+x"(sums), "=&x"(products)
      : "x"(planes), "x"(data));
}
inline void Dot(Ints& sums, Ints planes, Ints data) {
  for (int i = 0; i < 2; ++i) Dot(sums.part[i], planes.part[i], data.part[i]);
}

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
