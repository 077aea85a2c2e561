// What YosoAttention's CUDA kernels share: how a block finds its job, and how rows are finished.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "ops/common/cuda/device.h"
#include "ops/yoso/cuda/kernel.h"

namespace attenuator::yoso {

inline constexpr int kBlockThreads = 256;
inline constexpr int kBlockWarps = kBlockThreads / cuda::kWarp;

__host__ __device__ inline int Quotient(int count, int size) { return (count + size - 1) / size; }

// Coordinates of a quantised row: whole steps of the tensor cores.
__host__ __device__ inline int PaddedDim(int head_dim) { return Quotient(head_dim, 32) * 32; }

// Coordinates of a Hadamard block; smaller ones are visibly biased (hadamard.inl).
__host__ __device__ inline int HadamardSize(int head_dim) {
  int size = 32;
  while (size < head_dim) size *= 2;
  return size;
}

// The item whose blocks hold `block`.
template <class Batch>
__device__ inline int FindItem(const Batch& batch, int block) {
  int low = 0, high = batch.count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (batch.items[middle].first_block <= block ? low : high) = middle;
  }
  return low;
}

// Bits of |x|, in the order of magnitudes; those of infinity and NaN are the most.
__device__ inline unsigned Magnitude(float x) { return __float_as_uint(x) & 0x7FFFFFFFu; }
inline constexpr unsigned kInfinite = 0x7F800000u;

// Sum over the lanes of a warp, the same in every lane.
template <class Value>
__device__ inline Value WarpTotal(Value x) {
  for (int lanes = cuda::kWarp / 2; lanes > 0; lanes /= 2) {
    x += __shfl_xor_sync(cuda::kFullMask, x, lanes);
  }
  return x;
}

// Rows that a warp finishes together: each waits for shuffles, a root and a division.
inline constexpr int kFinishRows = 4;

// The factor that gives row lane % kFinishRows of a warp's `count` the l2 norm 1 (in float64:
// squares of any finite float). Rows have `columns` sums and are `pitch` from one another; beyond
// `count` the last one is repeated.
__device__ inline float NormFactor(const float* sums, int pitch, int count, int columns,
                                   float scale) {
  const int lane = threadIdx.x % cuda::kWarp;
  double squares[kFinishRows] = {};
#pragma unroll 1
  for (int c = lane; c < columns; c += cuda::kWarp) {
#pragma unroll
    for (int k = 0; k < kFinishRows; ++k) {
      const float x = sums[min(k, count - 1) * pitch + c];
      squares[k] += static_cast<double>(x) * x;
    }
  }
#pragma unroll
  for (int lanes = cuda::kWarp / 2; lanes > 0; lanes /= 2) {
#pragma unroll
    for (int k = 0; k < kFinishRows; ++k) {
      squares[k] += __shfl_xor_sync(cuda::kFullMask, squares[k], lanes);
    }
  }
  double own = squares[0];
#pragma unroll
  for (int k = 1; k < kFinishRows; ++k) own = lane % kFinishRows == k ? squares[k] : own;
  const double norm = sqrt(own) * scale;
  return static_cast<float>(scale / (norm > 1e-12 ? norm : 1e-12));
}

// Writes `count` rows of one head, their sums being in shared memory: times `scale`, l2-normalised,
// or over their weights' totals, plus the convolution. A warp takes kFinishRows neighbours.
template <class T>
__device__ inline void FinishRows(const Node& node, const Job& job, int head, int first, int count,
                                  const float* sums, int stride, float scale, const float* totals) {
  const int lane = threadIdx.x % cuda::kWarp;
  const bool broken = node.broken[job.sequence] != 0;
  const std::int64_t columns = static_cast<std::int64_t>(node.num_heads) * node.value_dim;
  T* output = static_cast<T*>(node.output) + (job.query_row + first) * columns +
              static_cast<std::int64_t>(head) * node.value_dim;
  const T* values = static_cast<const T*>(node.value) + job.key_row * columns +
                    static_cast<std::int64_t>(head) * node.value_dim;
  const T* weights = static_cast<const T*>(node.conv_weight) +
                     (node.conv_weight == nullptr ? 0 : head * node.taps);
  const int step = static_cast<int>(blockDim.x) / cuda::kWarp * kFinishRows;
  for (int begin = threadIdx.x / cuda::kWarp * kFinishRows; begin < count; begin += step) {
    const int end = min(begin + kFinishRows, count);
    float own = scale;  // of row lane % kFinishRows
    if (node.divides()) {
      own = __fdiv_rn(1.0f, fmaxf(totals[min(begin + lane % kFinishRows, end - 1)], kSumFloor));
    }
    if (node.normalize == Normalize::kNorm) {
      own = NormFactor(sums + begin * stride, stride, end - begin, node.value_dim, scale);
    }
#pragma unroll 1
    for (int r = begin; r < end; ++r) {
      const float factor = __shfl_sync(cuda::kFullMask, own, r - begin);
      const int low = max(first + r - node.taps / 2, 0);
      const int high = min(first + r + node.taps / 2, job.num_keys - 1);
      for (int c = lane; c < node.value_dim; c += cuda::kWarp) {
        float y = sums[r * stride + c] * factor;
        if (node.conv_weight != nullptr) {
          for (int j = low; j <= high; ++j) {
            y = fmaf(cuda::ToFloat(weights[j - (first + r) + node.taps / 2]),
                     cuda::ToFloat(values[j * columns + c]), y);
          }
        }
        if (broken) y = __int_as_float(0x7FC00000);
        output[r * columns + c] = cuda::FromFloat<T>(y);
      }
    }
  }
}

// Calls body with the least of 1, 2, 4 and kMost runs of `width` columns that hold value_dim.
template <int kMost, class Body>
void ForRuns(int value_dim, int width, const Body& body) {
  if (value_dim <= width) return body(std::integral_constant<int, 1>{});
  if (value_dim <= 2 * width) return body(std::integral_constant<int, 2>{});
  if (kMost == 4 || value_dim <= 4 * width) return body(std::integral_constant<int, 4>{});
  body(std::integral_constant<int, kMost>{});
}

}  // namespace attenuator::yoso
