// YosoAttention's hashing for AMX beside AVX-512 with VNNI; the other kernels are VNNI's. See
// ops/common/cpu.h for what such a file may use.
#include <immintrin.h>

#include "ops/common/amx.h"
#include "ops/common/simd/blocks_avx512.h"
#include "ops/yoso/cpu/kernel.h"

namespace attenuator::yoso {
namespace {

#include "ops/yoso/cpu/count_avx512.inl"
//
#include "ops/yoso/cpu/dot_vnni.inl"
//
#include "ops/yoso/cpu/hash.inl"
//
#include "ops/yoso/cpu/hash_amx.inl"

}  // namespace

const TileHashing avx512_amx::kHashing = {
    .plane_bytes = TilePlaneBytes,
    .pack_planes = PackPlanes,
    .hash_gaussian = HashGaussianByTiles,
};

}  // namespace attenuator::yoso
