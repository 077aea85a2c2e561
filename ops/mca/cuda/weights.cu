// McaAttention on CUDA: what the estimators need to know about the weight. A weight may lie on the
// device, where it cannot be read when the session is created: kept.h says at which runs.
//
// Sums run in float64 and in the CPU's order (ops/mca/cpu/weights.cc), so that p, the distribution
// function and norms are the CPU's bit for bit. One thread per row of a head computes ||W_k||^2;
// one thread per head adds them up over k, from shared memory.
//
// `deterministic` needs an upper bound of ||W_a||_2. It takes the Gram matrix (one thread per
// entry), a Householder tridiagonalisation (one block per head) and a search on Sturm sequences, as
// in spectral.cc, but with 256 candidates at a time instead of bisection. Five rounds narrow the
// bound to 1e-10 of the trace, the slack which is then added so that it surely is one, as on the
// CPU.
#include "ops/mca/cpu/weights.h"
#include "ops/mca/cuda/device.h"

namespace attenuator::mca {
namespace {

template <class T>
__global__ __launch_bounds__(kThreads) void RowSquares(DeviceCall call, double* squares) {
  const int k = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  const int head = static_cast<int>(blockIdx.y);
  if (k >= call.channels) return;
  const T* row = static_cast<const T*>(call.weight) + k * call.width() + head * call.head_dim;
  double sum = 0;
  for (int d = 0; d < call.head_dim; ++d) {
    const double w = cuda::ToFloat(row[d]);
    sum += w * w;  // the product is exact, so a fused multiply-add changes nothing
  }
  squares[static_cast<std::int64_t>(head) * call.channels + k] = sum;
}

// inverse_p and the norm of one head, and for `paper` its distribution function.
__global__ __launch_bounds__(kThreads) void Probabilities(DeviceCall call, DeviceWeights weights) {
  double* sums = cuda::SharedMemory<double>();          // [kThreads]
  int* last = reinterpret_cast<int*>(sums + kThreads);  // [1]
  const int head = static_cast<int>(blockIdx.x), t = static_cast<int>(threadIdx.x);
  const std::int64_t offset = static_cast<std::int64_t>(head) * call.channels;
  double* prefix = weights.prefix + offset;
  float* inverse_p = weights.inverse_p + offset;
  if (t == 0) *last = 0;
  double total = 0;  // used by thread 0
  for (int start = 0; start < call.channels; start += kThreads) {
    const int k = start + t;
    __syncthreads();
    const double square = k < call.channels ? prefix[k] : 0;
    sums[t] = square;
    if (square > 0) atomicMax(last, k);
    __syncthreads();
    if (t == 0) {
      for (int i = 0; i < kThreads && start + i < call.channels; ++i) {
        total += sums[i];
        sums[i] = total;
      }
    }
    __syncthreads();
    if (k < call.channels) prefix[k] = sums[t];
  }
  __syncthreads();
  total = prefix[call.channels - 1];
  const bool usable = total > 0 && Finite(total);
  if (t == 0) {
    weights.frobenius[head] = sqrt(total);
    weights.approximable[head] = usable ? 1 : 0;
  }
  if (!usable || call.estimator != DeviceEstimator::kPaper) return;
  const auto cumulated = [&](int i) -> std::uint64_t {
    if (i < 0) return 0;
    if (i >= *last) return kDrawRange;
    return static_cast<std::uint64_t>(fmin(1.0, prefix[i] / total) * kDrawRange);
  };
  for (int k = t; k < call.channels; k += kThreads) {
    const std::uint64_t here = cumulated(k), before = cumulated(k - 1);
    weights.cdf[offset + k] = here;
    inverse_p[k] = here > before ? static_cast<float>(static_cast<double>(kDrawRange) /
                                                      static_cast<double>(here - before))
                                 : INFINITY;
  }
}

// inverse_p of Poisson sampling, from the squared norms computed once more (the same bits), and
// whether W / p is finite.
template <class T>
__global__ __launch_bounds__(kThreads) void ScaledWeights(DeviceCall call, DeviceWeights weights) {
  const int k = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  const int head = static_cast<int>(blockIdx.y);
  if (k >= call.channels || weights.approximable[head] == 0) return;
  const std::int64_t offset = static_cast<std::int64_t>(head) * call.channels;
  const T* row = static_cast<const T*>(call.weight) + k * call.width() + head * call.head_dim;
  if (call.estimator == DeviceEstimator::kSampled) {
    double square = 0;
    for (int d = 0; d < call.head_dim; ++d) {
      const double w = cuda::ToFloat(row[d]);
      square += w * w;
    }
    const double total = weights.prefix[offset + call.channels - 1];
    weights.inverse_p[offset + k] =
        square > 0 ? static_cast<float>(1 / fmax(square / total, kSmallestP)) : INFINITY;
  }
  const float inverse_p = weights.inverse_p[offset + k];
  if (inverse_p == INFINITY) return;
  for (int d = 0; d < call.head_dim; ++d) {
    if (!Finite(cuda::ToFloat(row[d]) * inverse_p)) atomicMin(weights.approximable + head, 0);
  }
}

// Of weights in float, since half types do not approximate by `deterministic`.
__global__ __launch_bounds__(kThreads) void Gram(DeviceCall call, double* gram) {
  const int size = call.head_dim, head = static_cast<int>(blockIdx.y);
  const int entry = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (entry >= size * size) return;
  const float* column_i = static_cast<const float*>(call.weight) + head * size + entry / size;
  const float* column_j = static_cast<const float*>(call.weight) + head * size + entry % size;
  double sum = 0;
  for (int k = 0; k < call.channels; ++k) {
    const double w = column_i[k * call.width()];
    sum += w * column_j[k * call.width()];
  }
  gram[static_cast<std::int64_t>(head) * (size + 2) * size + entry] = sum;
}

// One block per head, in the steps of spectral.cc.
__global__ __launch_bounds__(kThreads) void Spectral(DeviceCall call, DeviceWeights weights) {
  double* u = cuda::SharedMemory<double>();  // [kHeadDimHigh]
  double* w = u + kHeadDimHigh;              // [kHeadDimHigh]
  double* sums = w + kHeadDimHigh;           // [kBlockWarps]
  const int head = static_cast<int>(blockIdx.x), t = static_cast<int>(threadIdx.x);
  const int n = call.head_dim;
  if (weights.approximable[head] == 0) return;
  double* a = weights.gram + static_cast<std::int64_t>(head) * (n + 2) * n;
  double* diagonal = a + n * n;
  double* beside = diagonal + n;
  const double trace = BlockSum(t < n ? a[t * n + t] : 0.0, sums);
  if (!(trace > 0) || !Finite(trace)) {
    if (t == 0) weights.spectral[head] = sqrt(trace);
    return;
  }
  for (int k = 0; k + 2 < n; ++k) {
    const bool mine = t > k && t < n;
    const double x = mine ? a[t * n + k] : 0.0;
    const double norm = sqrt(BlockSum(x * x, sums));
    if (norm == 0) continue;
    const double first = a[(k + 1) * n + k];
    const double target = first > 0 ? -norm : norm;
    const double element = t == k + 1 ? x - target : x;
    if (t < n) u[t] = element;
    const double square = BlockSum(element * element, sums);  // also waits for u
    if (square == 0) continue;
    const double beta = 2 / square;
    double product = 0;
    if (mine) {
      for (int j = k + 1; j < n; ++j) product += a[t * n + j] * u[j];
      product *= beta;
    }
    const double dot = BlockSum(product * element, sums);
    if (t < n) w[t] = product - 0.5 * beta * dot * element;
    __syncthreads();
    const int rest = n - k - 1;
    for (int entry = t; entry < rest * rest; entry += kThreads) {
      const int i = k + 1 + entry / rest, j = k + 1 + entry % rest;
      a[i * n + j] -= u[i] * w[j] + w[i] * u[j];
    }
    __syncthreads();
    if (t == 0) a[(k + 1) * n + k] = target;
  }
  __syncthreads();
  if (t < n) diagonal[t] = a[t * n + t];
  if (t + 1 < n) beside[t] = a[(t + 1) * n + t];
  __syncthreads();
  const double slack = 1e-10 * trace, tiny = 1e-300 + 1e-18 * trace;
  double low = 0, high = trace + slack;
  for (int round = 0; round < 16 && high - low > slack; ++round) {
    const double width = (high - low) / kThreads, x = low + width * (t + 1);
    bool above = true;  // x is above every eigenvalue: no pivot of T - x I is positive
    double pivot = diagonal[0] - x;
    for (int i = 0;; ++i) {
      if (pivot > 0) above = false;
      if (!above || i + 1 == n) break;
      if (pivot > -tiny) pivot = -tiny;
      pivot = diagonal[i + 1] - x - beside[i] * beside[i] / pivot;
    }
    const double bound = t == kThreads - 1 ? high : x;  // `high` is known to be above
    high = BlockReduce(above || t == kThreads - 1 ? bound : high, sums,
                       [](double p, double q) { return p < q ? p : q; });
    low = high - width > low ? high - width : low;
  }
  if (t == 0) weights.spectral[head] = sqrt(fmin(high + slack, trace + slack)) * (1 + 1e-12);
}

}  // namespace

void Clear(void* memory, std::size_t bytes, cuda::Stream stream) {
  cuda::ZeroAsync(memory, bytes, stream);
}

void LaunchWeights(ElementType data, const DeviceCall& call, const DeviceWeights& weights,
                   cuda::Stream stream) {
  const auto heads = static_cast<unsigned>(call.heads);
  const dim3 rows(Blocks(call.channels, kThreads), heads);
  cuda::ForType(data, [&](auto type) {
    using T = decltype(type);
    cuda::Launch("McaAttention, row norms", RowSquares<T>, rows, kThreads, 0, stream, call,
                 weights.prefix);
    cuda::Launch("McaAttention, probabilities", Probabilities, dim3(heads), kThreads,
                 (kThreads + 1) * sizeof(double), stream, call, weights);
    if (call.estimator != DeviceEstimator::kDeterministic) {
      cuda::Launch("McaAttention, scaled weights", ScaledWeights<T>, rows, kThreads, 0, stream,
                   call, weights);
    }
  });
  if (call.estimator != DeviceEstimator::kDeterministic) return;
  const dim3 entries(Blocks(static_cast<std::int64_t>(call.head_dim) * call.head_dim, kThreads),
                     heads);
  cuda::Launch("McaAttention, Gram matrix", Gram, entries, kThreads, 0, stream, call, weights.gram);
  cuda::Launch("McaAttention, spectral norm", Spectral, dim3(heads), kThreads,
               (2 * kHeadDimHigh + kBlockWarps) * sizeof(double), stream, call, weights);
}

}  // namespace attenuator::mca
