// SequencePool on CUDA: the first row, or the mean, of each sequence of a packed batch.
//
// A thread owns one channel of one sequence and walks down its rows, a warp reads 32 neighbouring
// channels of a row at once; grid = (channels / 128, sequences). Rows are added in token order in
// float64, as on the CPU, so float results are those of the CPU bit for bit. Eight rows are loaded
// before they are added, to have their reads under way together. Memory traffic: one read of the
// input, one write of [B, C].
#include "ops/common/cuda/device.h"
#include "ops/pool/cuda/kernel.h"

namespace attenuator::pool {
namespace {

constexpr int kThreads = 128;
constexpr int kAhead = 8;

template <class T>
__global__ void Pool(cuda::Batch<PoolItem> batch, bool mean, const T* hidden, std::int64_t channels,
                     T* output) {
  const std::int64_t channel = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (channel >= channels) return;
  const PoolItem item = batch.items[blockIdx.y];
  const T* rows = hidden + item.begin * channels + channel;
  const int length = mean || item.length == 0 ? item.length : 1;
  double sum = 0;
  int i = 0;
  for (; i + kAhead <= length; i += kAhead) {
    float ahead[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) ahead[k] = cuda::ToFloat(rows[(i + k) * channels]);
#pragma unroll
    for (int k = 0; k < kAhead; ++k) sum += ahead[k];
  }
  for (; i < length; ++i) sum += cuda::ToFloat(rows[i * channels]);
  // One row is passed on as it is.
  const float result = length > 1 ? static_cast<float>(sum / length) : static_cast<float>(sum);
  output[item.row * channels + channel] = cuda::FromFloat<T>(result);
}

}  // namespace

void LaunchPool(ElementType data, spec::SequencePool::Mode mode, const cuda::Batch<PoolItem>& batch,
                const void* hidden, std::int64_t channels, void* output, cuda::Stream stream) {
  const dim3 grid(static_cast<unsigned>((channels + kThreads - 1) / kThreads),
                  static_cast<unsigned>(batch.count));
  cuda::ForType(data, [&](auto type) {
    using T = decltype(type);
    cuda::Launch("SequencePool", Pool<T>, grid, kThreads, 0, stream, batch,
                 mode == spec::SequencePool::Mode::kMean, static_cast<const T*>(hidden), channels,
                 static_cast<T*>(output));
  });
}

}  // namespace attenuator::pool
