// The gradient's kernels for AVX-512, VNNI or not. See ops/common/cpu.h for what such a file may
// use.
#include "ops/common/simd/blocks_avx512.h"
#include "ops/yoso/cpu/gradient_kernel.h"

namespace attenuator::yoso {
namespace {

// Accumulators of a product: kRowTile times kColumnTile blocks of 16 floats.
inline constexpr int kRowTile = 6;
inline constexpr int kColumnTile = 4;

#include "ops/yoso/cpu/product.inl"
//
#include "ops/yoso/cpu/angle.inl"
//
#include "ops/yoso/cpu/slope.inl"
//
#include "ops/yoso/cpu/gradient.inl"

}  // namespace

const GradientKernels avx512::kGradientKernels = {
    .workspace_floats = WorkspaceFloats,
    .inverse_lengths = InverseLengths,
    .add_bucket = AddBucket,
    .finish_unit = FinishUnit,
    .scale = Scale,
};

}  // namespace attenuator::yoso
