// McaAttention on CUDA: row 0 alone, as (A X) W_a + b_a (`queries = first`, a global row), and what
// a run ends with: value_flops, and NaN in the rows of sequences that are not finite.
//
// Row 0, in float32. Attention weights: one block per head, two passes over the keys. Then A X: one
// thread per channel of `hidden`, which is read once per head. Then the product with W_a: one
// thread per column. Keys are taken in a fixed order, so that a row's bits depend on its sequence
// alone.
//
// Finish: thread 0 of a sequence's first block adds up what its heads spent, in float64; all of its
// blocks write NaN, to its rows and its importance, where something was not finite.
#include "ops/common/attention/cuda/tile.h"
#include "ops/mca/cuda/device.h"

namespace attenuator::mca {
namespace {

using cuda::FromFloat;
using cuda::ToFloat;

// Whether row 0 of this head is computed by (A X) W_a.
__device__ inline bool MixesRow(const SequenceItem& item, const DeviceCall& call,
                                const DevicePlan& plan, int head) {
  if (item.way == Way::kMixed) return true;
  return item.way == Way::kApproximate && item.global != 0 &&
         plan.approximated[static_cast<std::int64_t>(item.index) * call.heads + head] > 0;
}

__device__ inline int KeysOfRow(const SequenceItem& item, const DeviceCall& call) {
  if (item.way != Way::kMixed || call.global_token) return item.length;
  return call.ranges == nullptr ? item.keys : call.ranges[item.begin].end;
}

// Attention weights of row 0.
template <class T>
__global__ __launch_bounds__(kThreads) void RowWeights(Items items, DeviceCall call,
                                                       DevicePlan plan) {
  float* query = cuda::SharedMemory<float>();  // [kHeadDimHigh]
  float* shared = query + kHeadDimHigh;        // [kBlockWarps]
  const SequenceItem item = ItemAt(items, blockIdx.y, call);
  const int head = static_cast<int>(blockIdx.x), t = static_cast<int>(threadIdx.x);
  if (!MixesRow(item, call, plan, head)) return;
  const int keys = KeysOfRow(item, call), offset = head * call.head_dim;
  float* row = plan.row + head * call.tokens + item.begin;
  if (t < call.head_dim) {
    const T* source = static_cast<const T*>(call.query) + item.query_row * call.width() + offset;
    query[t] = ToFloat(source[t]) * call.scale;
  }
  __syncthreads();
  float most = attention::kLowest;
  for (int j = t; j < keys; j += kThreads) {
    const T* key = static_cast<const T*>(call.key) +
                   (static_cast<std::int64_t>(item.begin) + j) * call.width() + offset;
    float dot = 0;
    for (int d = 0; d < call.head_dim; ++d) dot = __fmaf_rn(query[d], ToFloat(key[d]), dot);
    if (j == item.length - 1) dot += item.last_key_log2;
    row[j] = dot;
    most = fmaxf(most, dot);
  }
  most = BlockReduce(most, shared, [](float a, float b) { return fmaxf(a, b); });
  float sum = 0;
  for (int j = t; j < keys; j += kThreads) {
    const float p = attention::Exp2(row[j] - most);
    row[j] = p;
    sum += p;
  }
  const float inverse = 1.0f / BlockSum(sum, shared);
  for (int j = t; j < keys; j += kThreads) row[j] *= inverse;
}

template <class T>
__global__ __launch_bounds__(kThreads) void MixRows(Items items, DeviceCall call, DevicePlan plan) {
  const SequenceItem item = ItemAt(items, blockIdx.z, call);
  const int head = static_cast<int>(blockIdx.y);
  const int channel = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (channel >= call.channels || !MixesRow(item, call, plan, head)) return;
  const float* row = plan.row + head * call.tokens + item.begin;
  const T* hidden = static_cast<const T*>(call.hidden) +
                    static_cast<std::int64_t>(item.begin) * call.channels + channel;
  const int keys = KeysOfRow(item, call);
  float sum = 0;
#pragma unroll 8
  for (int j = 0; j < keys; ++j) {
    sum = __fmaf_rn(row[j], ToFloat(hidden[static_cast<std::int64_t>(j) * call.channels]), sum);
  }
  const std::int64_t slot = static_cast<std::int64_t>(item.index) * call.heads + head;
  plan.mixed[slot * call.channels + channel] = sum;
}

template <class T>
__global__ __launch_bounds__(kThreads) void ProjectRows(Items items, DeviceCall call,
                                                        DevicePlan plan) {
  const SequenceItem item = ItemAt(items, blockIdx.y, call);
  const int head = static_cast<int>(blockIdx.x), d = static_cast<int>(threadIdx.x);
  if (d >= call.head_dim || !MixesRow(item, call, plan, head)) return;
  const int column = head * call.head_dim + d;
  const float* mixed =
      plan.mixed + (static_cast<std::int64_t>(item.index) * call.heads + head) * call.channels;
  const T* weight = static_cast<const T*>(call.weight) + column;
  float sum = ToFloat(static_cast<const T*>(call.bias)[column]);
#pragma unroll 8
  for (int k = 0; k < call.channels; ++k) {
    sum = __fmaf_rn(mixed[k], ToFloat(weight[k * call.width()]), sum);
  }
  static_cast<T*>(call.output)[item.query_row * call.width() + column] = FromFloat<T>(sum);
}

// One block a multiprocessor is asked for, lest the compiler spill registers to fit more.
template <class T>
__global__ __launch_bounds__(kThreads, 1) void Finish(Items items, DeviceCall call,
                                                      DeviceFacts facts, DevicePlan plan) {
  const SequenceItem item = ItemAt(items, blockIdx.y, call);
  const bool broken = facts.broken[item.index] != 0;
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    double spent = 0;
    for (int head = 0; head < call.heads; ++head) {
      const std::int64_t slot = static_cast<std::int64_t>(item.index) * call.heads + head;
      spent += static_cast<double>(plan.columns[slot]);
      if (MixesRow(item, call, plan, head)) {
        spent += static_cast<double>(call.channels) *
                 (1 + static_cast<double>(KeysOfRow(item, call)) / call.head_dim);
      }
    }
    const double dense = static_cast<double>(item.length) * call.channels * call.heads;
    const bool whole = broken || item.length == 0 || item.way == Way::kExact;
    call.value_flops[item.index] = whole ? 1.0f : static_cast<float>(spent / dense);
  }
  if (!broken) return;
  const std::int64_t rows = call.first ? 1 : item.length;
  T* out = static_cast<T*>(call.output) + item.query_row * call.width();
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
       i < rows * call.width(); i += stride) {
    out[i] = FromFloat<T>(NAN);
  }
  if (call.importance == nullptr) return;
  for (std::int64_t j = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
       j < item.length; j += stride) {
    call.importance[item.begin + j] = NAN;
  }
}

}  // namespace

void LaunchMixedRows(ElementType data, const Items& items, const DeviceCall& call,
                     const DevicePlan& plan, cuda::Stream stream) {
  const auto heads = static_cast<unsigned>(call.heads), count = static_cast<unsigned>(items.count);
  cuda::ForType(data, [&](auto type) {
    using T = decltype(type);
    cuda::Launch("McaAttention, weights of first rows", RowWeights<T>, dim3(heads, count), kThreads,
                 (kHeadDimHigh + kBlockWarps) * sizeof(float), stream, items, call, plan);
    cuda::Launch("McaAttention, mixed rows", MixRows<T>,
                 dim3(Blocks(call.channels, kThreads), heads, count), kThreads, 0, stream, items,
                 call, plan);
    cuda::Launch("McaAttention, first rows", ProjectRows<T>, dim3(heads, count), kThreads, 0,
                 stream, items, call, plan);
  });
}

void LaunchFinish(ElementType data, const Items& items, const DeviceCall& call,
                  const DeviceFacts& facts, const DevicePlan& plan, cuda::Stream stream) {
  cuda::ForType(data, [&](auto type) {
    cuda::Launch("McaAttention, value_flops", Finish<decltype(type)>,
                 dim3(16, static_cast<unsigned>(items.count)), kThreads, 0, stream, items, call,
                 facts, plan);
  });
}

}  // namespace attenuator::mca
