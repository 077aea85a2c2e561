// McaAttention on CUDA: what is to be known of a sequence before any head is computed, as
// ops/mca/cpu/sequence.cc finds it out.
//
// Finiteness: a block looks at 32 rows of all three inputs. Mean row: a thread owns a channel and
// adds 64 rows in float32, blocks of 64 in float64, which is the CPU's order, so the mean row is
// the CPU's bit for bit. Norms: one warp per row, in float64. The smallest sum over a row's keys
// comes from running sums in float64 by one block per sequence: each thread sums a run of rows,
// thread 0 joins the 256 runs. Both are asked for in float alone: half types approximate by
// `paper`, which needs neither. Traffic: query and key once, hidden three times.
#include "ops/mca/cuda/device.h"

namespace attenuator::mca {
namespace {

constexpr int kFiniteRows = 32;
constexpr int kSumRows = 64;  // as in cpu/kernel.inl

template <class T>
__device__ inline bool FiniteRows(const T* rows, std::int64_t count) {
  bool finite = true;
  for (std::int64_t i = threadIdx.x; i < count; i += kThreads) {
    finite = finite && Finite(cuda::ToFloat(rows[i]));
  }
  return finite;
}

template <class T>
__global__ __launch_bounds__(kThreads) void FindBroken(Items items, DeviceCall call,
                                                       DeviceFacts facts) {
  const SequenceItem item = items.items[blockIdx.y];
  const int row = static_cast<int>(blockIdx.x) * kFiniteRows;
  if (row >= item.length) return;
  const int rows = min(kFiniteRows, item.length - row);
  const std::int64_t width = call.width(), first = item.begin + row;
  bool finite = FiniteRows(static_cast<const T*>(call.key) + first * width, rows * width);
  finite = FiniteRows(static_cast<const T*>(call.hidden) + first * call.channels,
                      static_cast<std::int64_t>(rows) * call.channels) &&
           finite;
  const int queries = call.first ? (row == 0 ? 1 : 0) : rows;
  const std::int64_t query = static_cast<std::int64_t>(item.query_row) + (call.first ? 0 : row);
  finite = FiniteRows(static_cast<const T*>(call.query) + query * width, queries * width) && finite;
  if (!finite) atomicMax(facts.broken + item.index, 1);
}

__global__ __launch_bounds__(kThreads) void MeanRow(Items items, DeviceCall call,
                                                    DeviceFacts facts) {
  const SequenceItem item = items.items[blockIdx.y];
  const int channel = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (item.way != Way::kApproximate || channel >= call.channels) return;
  const std::int64_t stride = call.channels;
  const float* rows = static_cast<const float*>(call.hidden) + item.begin * stride + channel;
  double sum = 0;
  for (int start = 0; start < item.length; start += kSumRows) {
    const int end = min(start + kSumRows, item.length);
    float block = 0;
#pragma unroll 8
    for (int i = start; i < end; ++i) block += rows[i * stride];
    sum += block;
  }
  const float mean = static_cast<float>(sum / item.length);
  if (!Finite(mean)) atomicMax(facts.overflown + item.index, 1);
  facts.centre[item.index * stride + channel] = mean;
}

__global__ __launch_bounds__(kThreads) void Measure(Items items, DeviceCall call,
                                                    DeviceFacts facts) {
  const SequenceItem item = items.items[blockIdx.y];
  const int lane = threadIdx.x % cuda::kWarp;
  const int row = static_cast<int>(blockIdx.x) * kBlockWarps + threadIdx.x / cuda::kWarp;
  if (item.way != Way::kApproximate || row >= item.length) return;
  const bool centred = facts.overflown[item.index] == 0;
  const float* x = static_cast<const float*>(call.hidden) +
                   (static_cast<std::int64_t>(item.begin) + row) * call.channels;
  const float* centre = facts.centre + static_cast<std::int64_t>(item.index) * call.channels;
  double square = 0, far = 0;
  for (int k = lane; k < call.channels; k += cuda::kWarp) {
    const double e = x[k], c = centred ? centre[k] : 0.0f;
    square += e * e;
    far += (e - c) * (e - c);
  }
  for (int lanes = cuda::kWarp / 2; lanes > 0; lanes /= 2) {
    square += __shfl_xor_sync(cuda::kFullMask, square, lanes);
    far += __shfl_xor_sync(cuda::kFullMask, far, lanes);
  }
  if (lane != 0) return;
  const double length = sqrt(square), distance = sqrt(far);
  const std::int64_t token = static_cast<std::int64_t>(item.begin) + row;
  if (call.estimator == DeviceEstimator::kDeterministic) {
    facts.measure[token] = length;
    facts.distances[token] = nextafterf(static_cast<float>(distance), INFINITY);
  } else {
    facts.measure[token] = length - distance;
  }
}

// Smallest sum of `measure` over the keys of a row (row 0 of a global window aside), and what
// follows from it.
__global__ __launch_bounds__(kThreads) void Decide(Items items, DeviceCall call,
                                                   DeviceFacts facts) {
  double* shared = cuda::SharedMemory<double>();  // [kThreads + 1]
  const SequenceItem item = ItemAt(items, blockIdx.x, call);
  if (item.way != Way::kApproximate) return;
  const int n = item.length, t = static_cast<int>(threadIdx.x);
  const int run = (n + kThreads - 1) / kThreads;
  const int begin = min(t * run, n), end = min(begin + run, n);
  const double* measure = facts.measure + item.begin;
  double sum = 0, total;
  for (int j = begin; j < end; ++j) sum += measure[j];
  sum = BlockBefore(sum, shared, &total);
  double smallest = total;
  if (item.window > 0) {
    double* before = facts.before + item.begin + item.index;
    for (int j = begin; j < end; ++j) {
      before[j] = sum;
      sum += measure[j];
    }
    if (t == 0) before[n] = total;
    __syncthreads();
    smallest = INFINITY;
    for (int i = t + (item.global != 0 ? 1 : 0); i < n; i += kThreads) {
      int low = max(0, i - item.window);
      int high = item.window < n - i - 1 ? i + item.window + 1 : n;
      if (call.ranges != nullptr) {
        low = call.ranges[item.begin + i].begin;
        high = call.ranges[item.begin + i].end;
      }
      const double far = item.global != 0 && low > 0 ? measure[0] : 0.0;
      const double seen = before[high] - before[low] + far;
      if (!(seen >= smallest)) smallest = seen;  // NaN stays
    }
    smallest = BlockReduce(smallest, shared, [](double a, double b) { return b >= a ? a : b; });
  }
  if (t != 0) return;
  const bool mean = facts.overflown[item.index] == 0;
  if (call.estimator == DeviceEstimator::kDeterministic) {
    facts.beta[item.index] = smallest / item.keys;
    facts.centred[item.index] = mean ? 1 : 0;
  } else {
    facts.centred[item.index] = mean && smallest >= 0 ? 1 : 0;
  }
}

}  // namespace

void LaunchFacts(ElementType data, const Items& items, const DeviceCall& call,
                 const DeviceFacts& facts, cuda::Stream stream) {
  const int longest = LongestOf(items);
  const auto count = static_cast<unsigned>(items.count);
  cuda::ForType(data, [&](auto type) {
    using T = decltype(type);
    cuda::Launch("McaAttention, finite rows", FindBroken<T>,
                 dim3(Blocks(longest, kFiniteRows), count), kThreads, 0, stream, items, call,
                 facts);
  });
  if (!AnyOf(items, Way::kApproximate) || call.estimator == DeviceEstimator::kPaper) return;
  cuda::Launch("McaAttention, mean row", MeanRow, dim3(Blocks(call.channels, kThreads), count),
               kThreads, 0, stream, items, call, facts);
  cuda::Launch("McaAttention, distances", Measure, dim3(Blocks(longest, kBlockWarps), count),
               kThreads, 0, stream, items, call, facts);
  cuda::Launch("McaAttention, centre", Decide, dim3(count), kThreads,
               (kThreads + 1) * sizeof(double), stream, items, call, facts);
}

}  // namespace attenuator::mca
