// McaAttention on CUDA: what a run's kernels hand to each other, and their launches.
//
// Everything that depends on data is decided on the device: a run is a fixed list of launches.
// Memory named here is on the device; [H, T] and the like say how it is laid out.
#pragma once

#include <cstddef>
#include <cstdint>

#include "operators.gen.h"
#include "ops/common/attention/attention.h"
#include "ops/common/cuda/batch.h"
#include "ops/common/cuda/context.h"
#include "ops/common/philox.h"
#include "ops/mca/cpu/projection.h"

namespace attenuator::mca {

using DeviceEstimator = spec::McaAttention::Estimator;

// How a sequence is computed, which the host knows beforehand.
enum class Way : std::int32_t {
  kExact,        // all tokens are projected, then attended to
  kApproximate,  // a plan says which tokens are projected how
  kMixed,        // `queries = first`: (A X) W_a
};

struct SequenceItem {
  std::int32_t begin;
  std::int32_t length;
  std::int32_t query_row;  // of query and output
  std::int32_t index;      // b
  std::int32_t window;     // 0 where all rows see all keys
  std::int32_t global;     // row 0 sees all keys though others do not, and all see key 0
  std::int32_t keys;       // n in the formula for r; of kMixed, keys that the row sees
  Way way;
  // Not 0 where positions decide whether the sequence is narrow: `window` if it is (ItemAt). All
  // else here is as if it were not.
  std::int32_t window_if_narrow;
  float last_key_log2;  // as in attention::Item
  float alpha;
  std::int64_t seed;
  Probe probe;  // rows = 0: no probe
  double maxima_cost;
};

using Items = cuda::Batch<SequenceItem>;

// Neighbouring rows of `hidden` that are projected exactly.
struct RowSpan {
  std::int32_t first_block, begin, rows;
};
using RowSpans = cuda::Batch<RowSpan>;

// Inputs, outputs and sizes of a run.
struct DeviceCall {
  const void* query;                  // [T, H * D], or [B, H * D]
  const void* key;                    // [T, H * D]
  const void* hidden;                 // [T, C]
  const void* weight;                 // [C, H * D]
  const void* bias;                   // [H * D]
  void* output;                       // shaped as query
  float* value_flops;                 // [B]
  float* importance;                  // [T], or null
  const attention::KeyRange* ranges;  // [T], as in attention::Call
  std::int64_t tokens;                // T
  int heads;
  int head_dim;
  int channels;
  float scale;  // factor on the scores, times log2(e)
  std::uint32_t layer;
  DeviceEstimator estimator;
  bool first;
  bool global_token;

  ATTENUATOR_HOST_DEVICE std::int64_t width() const {
    return static_cast<std::int64_t>(heads) * head_dim;
  }
};

// What the estimators need to know of the weight: facts, and what only their computation needs.
struct DeviceWeights {
  float* inverse_p;    // [H, C]; inf where the row is zero; estimators that sample
  std::uint64_t* cdf;  // [H, C], in units of 1 / kDrawRange; `paper`
  double* frobenius;   // [H]
  double* spectral;    // [H], at least ||W_a||_2; `deterministic`
  int* approximable;   // [H]: 0 where the head's weight is zero or not finite
  double* prefix;      // [H, C]: ||W_k||^2, then their running sums; while facts are computed
  double* gram;        // [H, D, D] and two rows [H, 2 D]; so too, of `deterministic`
};

// What LaunchFacts computes for each sequence.
struct DeviceFacts {
  int* broken;       // [B]: a query, key or hidden row is not finite
  int* overflown;    // [B]: the mean row is not finite
  int* centred;      // [B]
  float* centre;     // [B, C]: the mean row
  double* measure;   // [T]: |x_j| - |x_j - mu|, or |x_j| for `deterministic`
  float* distances;  // [T], at least |x_j - mu|; `deterministic`
  double* before;    // [T + B]: running sums of `measure`, a sequence's n + 1 from begin + b on
  double* beta;      // [B]: smallest (1 / keys) sum |x_j| over a row's keys; `deterministic`
};

// Which tokens of a head are projected how. [H, T] is a head's tokens in the order of the plan,
// approximated ones first, `sampled` by falling r.
struct DevicePlan {
  unsigned* maxima;             // [H, T]: bits of the largest attention weight of each token
  unsigned* probed;             // [H, T]: the same over the probe's rows; of sequences with one
  int* samples;                 // [H, T]: r of each token, 0 where exact
  int* order;                   // [H, T]: token of each place
  int* shared;                  // [H, T]: r of each place, shared by a group
  int* place;                   // [B, H, C + 1]: for sorting
  int* approximated;            // [B, H]: how many
  float* reach;                 // [B, H, C]: u_k / p_k
  float* base;                  // [B, H, D]: b_a + mu W_a
  unsigned long long* columns;  // [B, H]: multiply-adds spent, divided by head_dim
  void* values;                 // [T, H * D], of the data's type
  float* row;                   // [H, T]: attention weights of row 0
  float* mixed;                 // [B, H, C]: (A X) of row 0
};

// Whether exact values are computed by tensor cores (dense.cu).
inline bool IsDense(ElementType data) { return data != ElementType::kFloat; }

// Queues zeros.
void Clear(void* memory, std::size_t bytes, cuda::Stream stream);
// From the weight alone; `weights` is written.
void LaunchWeights(ElementType data, const DeviceCall& call, const DeviceWeights& weights,
                   cuda::Stream stream);
// Whether rows are finite and, of sequences that are approximated, mean row and distances.
void LaunchFacts(ElementType data, const Items& items, const DeviceCall& call,
                 const DeviceFacts& facts, cuda::Stream stream);
// plan.maxima and plan.probed.
void LaunchMaxima(ElementType data, const Items& items, const DeviceCall& call,
                  const DevicePlan& plan, cuda::Stream stream);
// The plan of sequences that are approximated, LaunchMaxima included.
void LaunchPlan(ElementType data, const Items& items, const DeviceCall& call,
                const DeviceWeights& weights, const DeviceFacts& facts, const DevicePlan& plan,
                cuda::Stream stream);
// Values of the spans' rows, in float16 and bfloat16. A span owns DenseBlocks blocks from its
// first_block on; `blocks` is their number.
int DenseBlocks(const DeviceCall& call, std::int64_t rows);
void LaunchDense(ElementType data, const RowSpans& spans, int blocks, const DeviceCall& call,
                 const DevicePlan& plan, cuda::Stream stream);
// Values of every token of sequences that are approximated and, in float, of exact ones.
void LaunchProject(ElementType data, const Items& items, const DeviceCall& call,
                   const DeviceWeights& weights, const DeviceFacts& facts, const DevicePlan& plan,
                   cuda::Stream stream);
// Row 0 by (A X) W_a + b_a: of kMixed, and of a global row where anything is approximated.
void LaunchMixedRows(ElementType data, const Items& items, const DeviceCall& call,
                     const DevicePlan& plan, cuda::Stream stream);
// value_flops, and NaN in the rows of sequences that are not finite.
void LaunchFinish(ElementType data, const Items& items, const DeviceCall& call,
                  const DeviceFacts& facts, const DevicePlan& plan, cuda::Stream stream);

}  // namespace attenuator::mca
