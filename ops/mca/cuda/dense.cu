// McaAttention on CUDA in float16 and bfloat16: values of sequences that are exact, hidden W + b,
// on tensor cores with float32 sums.
//
// A block takes 128 rows by 128 columns of the values, all heads side by side, and walks over the
// columns of `hidden` 32 at a time; three such steps of both operands are in shared memory, two of
// them on their way by asynchronous copies while the third is multiplied. Eight warps own 32 rows
// by 64 columns each: two fragments of rows and eight of the weight for sixteen products (mma 16 x
// 8 x 16). Rows in shared memory lie 16 bytes further apart than they are long, which keeps
// ldmatrix free of bank conflicts. Sums start at the bias and run over the columns in ascending
// order, whatever rows are neighbours, so that a row's bits are its own.
//
// Sequences that follow one another are one matrix: tiles do not end where sequences do.
//
// Memory: hidden once for every 128 columns of the values, the weight once for every 128 rows,
// mostly from L2. Shared memory: 55.5 KiB.
#include "ops/mca/cuda/device.h"

namespace attenuator::mca {
namespace {

using cuda::FromFloat;
using cuda::ToFloat;

constexpr int kTileRows = 128, kTileColumns = 128, kDepth = 32, kStages = 3;
constexpr int kGap = 8;  // elements
constexpr int kRowStride = kDepth + kGap, kWeightStride = kTileColumns + kGap;
constexpr int kStage = kTileRows * kRowStride + kDepth * kWeightStride;  // elements
constexpr int kWarpRows = 32, kWarpColumns = 64;
constexpr int kRowFragments = kWarpRows / 16, kColumnFragments = kWarpColumns / 8;
static_assert(kTileRows / kWarpRows * (kTileColumns / kWarpColumns) == kBlockWarps);

using Sums = float[kRowFragments][kColumnFragments][4];

// The block's tile of values, and the rows and columns behind which there is nothing.
struct Tile {
  std::int64_t row, rows_end;
  int column;
  bool vector;  // 16 bytes at a time may be read
};

// 8 neighbouring elements into shared memory, zeros beyond the first `count`.
template <class T>
__device__ __forceinline__ void LoadEight(T* target, const T* source, int count, bool vector) {
  if (vector) return cuda::CopyAsync16(target, source, count > 0);
  for (int e = 0; e < 8; ++e) target[e] = e < count ? source[e] : FromFloat<T>(0.0f);
}

// Starts loading columns [k, k + kDepth) of the tile's rows of `hidden`, and those rows of the
// tile's columns of the weight.
template <class T>
__device__ __forceinline__ void LoadStep(const DeviceCall& call, const Tile& tile, int k,
                                         T* stage) {
  const auto* hidden = static_cast<const T*>(call.hidden);
  const auto* weight = static_cast<const T*>(call.weight);
  T* weight_stage = stage + kTileRows * kRowStride;
  for (int i = threadIdx.x; i < kTileRows * kDepth / 8; i += kThreads) {
    const int r = i / (kDepth / 8), c = i % (kDepth / 8) * 8;
    const bool row = tile.row + r < tile.rows_end;
    const int count = row ? call.channels - k - c : 0;
    LoadEight(stage + r * kRowStride + c,
              count > 0 ? hidden + (tile.row + r) * call.channels + k + c : hidden, count,
              tile.vector);
  }
  for (int i = threadIdx.x; i < kTileColumns * kDepth / 8; i += kThreads) {
    const int r = i / (kTileColumns / 8), c = i % (kTileColumns / 8) * 8;
    const int count = k + r < call.channels ? static_cast<int>(call.width()) - tile.column - c : 0;
    LoadEight(weight_stage + r * kWeightStride + c,
              count > 0 ? weight + (k + r) * call.width() + tile.column + c : weight, count,
              tile.vector);
  }
}

// sums += the warp's rows of a step times the warp's columns.
template <class T>
__device__ __forceinline__ void MultiplyStep(const T* stage, Sums& sums) {
  const int lane = threadIdx.x % cuda::kWarp, warp = threadIdx.x / cuda::kWarp;
  const T* rows = stage + (warp / 2 * kWarpRows + lane % 16) * kRowStride + lane / 16 * 8;
  const T* columns = stage + kTileRows * kRowStride + lane % 16 * kWeightStride +
                     warp % 2 * kWarpColumns + lane / 16 * 8;
#pragma unroll
  for (int k = 0; k < kDepth; k += 16) {
    std::uint32_t a[kRowFragments][4];
#pragma unroll
    for (int m = 0; m < kRowFragments; ++m) {
      cuda::LoadMatrices(a[m], rows + m * 16 * kRowStride + k);
    }
#pragma unroll
    for (int n = 0; n < kColumnFragments; n += 2) {
      std::uint32_t b[4];
      cuda::LoadMatricesTransposed(b, columns + k * kWeightStride + n * 8);
      const std::uint32_t low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
#pragma unroll
      for (int m = 0; m < kRowFragments; ++m) {
        cuda::Mma<T>(sums[m][n], a[m], low);
        cuda::Mma<T>(sums[m][n + 1], a[m], high);
      }
    }
  }
}

// Element e of a lane's sums is row 8 (e / 2) and column e % 2 of those from here on.
__device__ __forceinline__ int OwnRow(int m) {
  return static_cast<int>(threadIdx.x) / cuda::kWarp / 2 * kWarpRows + m * 16 +
         static_cast<int>(threadIdx.x) % cuda::kWarp / 4;
}
__device__ __forceinline__ int OwnColumn(int n) {
  return static_cast<int>(threadIdx.x) / cuda::kWarp % 2 * kWarpColumns + n * 8 +
         static_cast<int>(threadIdx.x) % 4 * 2;
}

template <class T>
__device__ __forceinline__ void StoreTile(const DeviceCall& call, const Tile& tile,
                                          const Sums& sums, T* values) {
  const int width = static_cast<int>(call.width());
#pragma unroll
  for (int m = 0; m < kRowFragments; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::int64_t row = tile.row + OwnRow(m) + 8 * half;
      if (row >= tile.rows_end) continue;
#pragma unroll
      for (int n = 0; n < kColumnFragments; ++n) {
        const int column = tile.column + OwnColumn(n);
        const float first = sums[m][n][2 * half], second = sums[m][n][2 * half + 1];
        T* target = values + row * width + column;
        if (width % 2 == 0) {
          if (column < width) {
            *reinterpret_cast<std::uint32_t*>(target) = cuda::Pack<T>(first, second);
          }
          continue;
        }
        if (column < width) target[0] = FromFloat<T>(first);
        if (column + 1 < width) target[1] = FromFloat<T>(second);
      }
    }
  }
}

template <class T>
__global__ __launch_bounds__(kThreads, 2) void ProjectDense(RowSpans spans, DeviceCall call,
                                                            T* values) {
  int at = spans.count - 1;
  while (spans.items[at].first_block > static_cast<int>(blockIdx.x)) --at;
  const RowSpan span = spans.items[at];
  const int width = static_cast<int>(call.width());
  const int tiles = (width + kTileColumns - 1) / kTileColumns;
  const int local = static_cast<int>(blockIdx.x) - span.first_block;
  Tile tile;
  tile.row = span.begin + static_cast<std::int64_t>(local / tiles) * kTileRows;
  tile.rows_end = static_cast<std::int64_t>(span.begin) + span.rows;
  tile.column = local % tiles * kTileColumns;
  tile.vector = call.channels % 8 == 0 && width % 8 == 0;

  const T* bias = static_cast<const T*>(call.bias);
  Sums sums;
#pragma unroll
  for (int n = 0; n < kColumnFragments; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int column = tile.column + OwnColumn(n) + e;
      const float start = column < width ? ToFloat(bias[column]) : 0.0f;
#pragma unroll
      for (int m = 0; m < kRowFragments; ++m) sums[m][n][e] = sums[m][n][2 + e] = start;
    }
  }
  T* stages = cuda::SharedMemory<T>();
  const int steps = (call.channels + kDepth - 1) / kDepth;
  for (int step = 0; step < kStages - 1; ++step) {
    if (step < steps) LoadStep(call, tile, step * kDepth, stages + step * kStage);
    cuda::CopyCommit();
  }
  for (int step = 0; step < steps; ++step) {
    cuda::CopyWait<kStages - 2>();
    __syncthreads();  // the step is there, and the one before has been multiplied
    const int next = step + kStages - 1;
    if (next < steps) LoadStep(call, tile, next * kDepth, stages + next % kStages * kStage);
    cuda::CopyCommit();
    MultiplyStep(stages + step % kStages * kStage, sums);
  }
  StoreTile(call, tile, sums, values);
}

}  // namespace

int DenseBlocks(const DeviceCall& call, std::int64_t rows) {
  return static_cast<int>(Blocks(rows, kTileRows) * Blocks(call.width(), kTileColumns));
}

void LaunchDense(ElementType data, const RowSpans& spans, int blocks, const DeviceCall& call,
                 const DevicePlan& plan, cuda::Stream stream) {
  const auto launch = [&](auto type) {
    using T = decltype(type);
    cuda::Launch("McaAttention, dense projection", ProjectDense<T>,
                 dim3(static_cast<unsigned>(blocks)), kThreads, kStages * kStage * sizeof(T),
                 stream, spans, call, static_cast<T*>(plan.values));
  };
  if (data == ElementType::kFloat16) return launch(cuda::Half{});
  launch(cuda::Bfloat16{});
}

}  // namespace attenuator::mca
