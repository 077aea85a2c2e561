// The value projection of McaAttention in the machine's best instruction set.
//
// Every element of a result is one chain of fused multiply-adds over the columns of `hidden` in
// ascending order, so it depends neither on how many rows are computed together nor on the
// instruction set.
#pragma once

#include <cstdint>

#include "mca_rule.gen.h"
#include "ops/common/host_device.h"

namespace attenuator::mca {

// Columns of a packed weight are padded to a multiple of kPadding, with zeros.
ATTENUATOR_HOST_DEVICE inline constexpr std::int64_t PaddedColumns(std::int64_t columns) {
  return (columns + mca::kPadding - 1) / mca::kPadding * mca::kPadding;
}
using mca::kSampleGroup;
inline constexpr std::int64_t kDrawPad = 32;

// Columns of `hidden` that a group of tokens keeps, ascending. Poisson sampling keeps column k with
// probability min(1, r p_k): `certain` has those with r p_k >= 1, weight 1, `partial` the others,
// weight 1 / (r p_k), of which 1 / p_k is in the scaled weight.
struct SampledColumns {
  const std::int32_t* certain;
  std::int64_t num_certain;
  const std::int32_t* partial;
  std::int64_t num_partial;
  float r;
};

// One head's W_v, rows of `padded` floats.
struct PackedHead {
  const float* weight;  // [C, padded]
  const float* scaled;  // [C, padded]: weight / p
  std::int64_t padded;
};

struct ProjectionKernels {
  // out[i] = base + sum_{k < depth} rows[i][k] * weight[k], for each of `count` rows.
  void (*exact)(const float* const* rows, std::int64_t count, std::int64_t depth,
                const PackedHead& head, const float* base, float* const* out);

  // out[i] = base + sum over the sampled columns of (rows[i][k] - centre[k]) * weight[k], weighted
  // as above; at most kSampleGroup rows.
  void (*sampled)(const float* const* rows, int count, const SampledColumns& columns,
                  const float* centre, const PackedHead& head, const float* base,
                  float* const* out);

  // reach[k] = u_k * inverse_p[k] for each of `channels` columns, u_k in (0, 1] from word k of the
  // stream (seed, layer, head, kMcaSamples). Writes up to kDrawPad floats more than `channels`.
  void (*draw)(std::int64_t seed, std::uint32_t layer, std::uint32_t head, std::int64_t channels,
               const float* inverse_p, float* reach);

  // Keeps the candidates with reach <= r, in their order and in place; returns how many.
  std::int64_t (*narrow)(float r, std::int64_t count, std::int32_t* columns, float* reach,
                         float* inverse_p);

  // Splits columns into certain ones (inverse_p <= r) and partial ones. Both lists have room for
  // `count`; returns how many are certain.
  std::int64_t (*part)(float r, std::int64_t count, const std::int32_t* columns,
                       const float* inverse_p, std::int32_t* certain, std::int32_t* partial);

  // True where all values are finite; rows lie `stride` floats apart.
  bool (*finite)(const float* values, std::int64_t rows, std::int64_t columns, std::int64_t stride);

  // sums[c] = the sum of column c of x [rows, columns], each block of kSumRows rows in float32,
  // blocks in float64; norms[j] = |x_j|. One pass through memory.
  void (*moments)(const float* x, std::int64_t rows, std::int64_t columns, double* sums,
                  float* norms);

  // distances[j] = |x_j - centre| for each row of x [rows, columns].
  void (*distances)(const float* x, const float* centre, std::int64_t rows, std::int64_t columns,
                    float* distances);

  // norms[j] = |x_j| and distances[j] = |x_j - centre| in float64: for a bound that must hold, or
  // where squares would overflow or underflow float32.
  void (*exact_norms)(const float* x, const float* centre, std::int64_t rows, std::int64_t columns,
                      double* norms, double* distances);
};

// The kernels of the machine's best instruction set.
const ProjectionKernels& Projection();

const ProjectionKernels& ProjectionAvx2();
const ProjectionKernels& ProjectionAvx512();

}  // namespace attenuator::mca
