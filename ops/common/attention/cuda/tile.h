// What the kernels on tiles of rows and keys share: which tile a block has, which keys its rows
// see, and, in float32, the tile's scores.
//
// Float32 tiles are 16 kMicro rows by 16 kMicro keys on 256 threads. Thread (ty, tx) = (t / 16,
// t % 16) owns the scores of rows ty * kMicro + 0 .. kMicro - 1 and keys tx + 16 * (0 .. kMicro -
// 1): 16 neighbouring lanes share a row, so that a row's maximum and sum are four shuffles.
// Operands lie in shared memory with rows an odd number of float4 apart, which spreads 16 rows over
// all banks. Every score is one chain of fused multiply-adds over the dimensions in ascending
// order.
#pragma once

#include "ops/common/attention/cuda/attention.h"
#include "ops/common/cuda/device.h"

namespace attenuator::attention {

constexpr float kLowest = -3.402823466e38f;
constexpr int kTileThreads = 256;

// No denormal number enters the second product.
using cuda::Exp2;

// Whether some row of the sequence does not see all keys.
__device__ inline bool IsNarrow(const Item& item, int window, const KeyRange* ranges) {
  if (ranges == nullptr || item.length == 0) return window > 0 && window < item.length - 1;
  return window > 0 && ranges[item.begin].end < item.length;
}

// How many keys row 0 sees.
__device__ inline int FirstRowKeys(const Item& item, const Call& call) {
  if (call.global_token || !IsNarrow(item, call.window, call.ranges)) return item.length;
  return call.ranges == nullptr ? call.window + 1 : call.ranges[item.begin].end;
}

// Rows [row, row_end) of a sequence and the keys they see, in blocks of `block` that start at
// multiples of it: [low, high), and key 0 in a step of its own where `apart`.
struct TileKeys {
  int row, row_end;
  int window;              // 0 = all
  const KeyRange* ranges;  // of the sequence's rows; null: |i - j| <= window
  bool global;
  int low, high;
  int all_from, all_to;  // every row sees the keys between
  bool apart;
  int first;  // start of the first block
  int steps;

  __device__ int start(int step, int block) const {
    return apart ? (step == 0 ? 0 : first + (step - 1) * block) : first + step * block;
  }
  // Keys of the step: [begin, end), of which the first lies `begin - start` into the block.
  __device__ int begin(int start) const { return apart && start == 0 ? 0 : max(start, low); }
  __device__ int end(int start, int block) const {
    return apart && start == 0 ? 1 : min(start + block, high);
  }
  // Whether some row does not see some key of a block.
  __device__ bool masked(int start, int block) const {
    return start < all_from || start + block > all_to;
  }
  // Keys inside row i's window and before `end`; i may be beyond the sequence's last row.
  __device__ KeyRange seen(int i, int end) const {
    if (window == 0) return {0, end};
    if (ranges == nullptr) return {i - window, window < end - i ? i + window + 1 : end};
    const KeyRange inside = ranges[min(i, row_end - 1)];
    return {inside.begin, min(inside.end, end)};
  }
  // Whether a row whose window holds `inside` sees key j.
  __device__ bool sees(const KeyRange& inside, int j) const {
    return (j >= inside.begin && j < inside.end) || (global && j == 0);
  }
};
// `ranges` as in Call.
__device__ inline TileKeys KeysOf(const Item& item, int row, int rows, int window,
                                  bool global_token, int block, const KeyRange* ranges = nullptr) {
  TileKeys keys;
  const int length = item.length;
  keys.row = row;
  keys.row_end = min(row + rows, length);
  keys.window = IsNarrow(item, window, ranges) ? window : 0;
  keys.ranges = ranges == nullptr ? nullptr : ranges + item.begin;
  keys.global = global_token && keys.window > 0;
  keys.low = keys.all_from = 0;
  keys.high = keys.all_to = length;
  if (keys.window > 0 && ranges != nullptr) {
    const KeyRange upper = keys.ranges[row], lower = keys.ranges[keys.row_end - 1];
    keys.low = upper.begin;
    keys.high = lower.end;
    keys.all_from = lower.begin;
    keys.all_to = upper.end;
  } else if (keys.window > 0) {
    keys.low = max(row - window, 0);
    // row_end + window would overflow at the largest window.
    if (window < length - keys.row_end) keys.high = keys.row_end + window;
    keys.all_from = max(keys.row_end - 1 - window, 0);
    keys.all_to = min(row + window + 1, length);
  }
  keys.first = keys.low / block * block;
  keys.apart = keys.global && keys.first > 0;
  if (keys.global && keys.first == 0) keys.low = 0;
  keys.steps = (keys.high - keys.first + block - 1) / block + (keys.apart ? 1 : 0);
  return keys;
}

// The item that has this tile.
__device__ inline Item ItemOf(const cuda::Batch<Item>& batch, int tile) {
  int low = 0, high = batch.count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (batch.items[middle].first_tile <= tile ? low : high) = middle;
  }
  return batch.items[low];
}

// kMicro of the float32 kernels for heads of so many columns. Terms (terms.h) need room for a third
// tile beside queries and keys.
__host__ inline int FloatMicro(const Call& call, int columns) {
  return columns <= (call.terms.rows > 0 ? 64 : 128) ? 4 : 2;
}

// Floats between rows of a tile in shared memory.
__host__ __device__ inline int TileStride(int columns) { return ((columns + 3) / 4 | 1) * 4; }

// tile[i] = factor * source[i] for rows [begin, end) of `rows`, zeros elsewhere and in columns up
// to a multiple of four.
template <class T>
__device__ inline void LoadTile(float* tile, int rows, const T* source, std::int64_t source_stride,
                                int begin, int end, int columns, float factor) {
  const int stride = TileStride(columns), padded = (columns + 3) / 4 * 4;
  const int lane = threadIdx.x % cuda::kWarp;
  for (int i = threadIdx.x / cuda::kWarp; i < rows; i += kTileThreads / cuda::kWarp) {
    for (int c = lane; c < padded; c += cuda::kWarp) {
      const bool there = i >= begin && i < end && c < columns;
      tile[i * stride + c] = there ? cuda::ToFloat(source[i * source_stride + c]) * factor : 0.0f;
    }
  }
}

// scores[r][k] = query row ty * kMicro + r times key tx + 16 k, of 16 kKeys keys.
template <int kMicro, int kKeys = kMicro>
__device__ inline void ScoreTile(const float* query, const float* key, int columns,
                                 float (&scores)[kMicro][kKeys]) {
  const int stride = TileStride(columns), tx = threadIdx.x % 16, ty = threadIdx.x / 16;
#pragma unroll
  for (int r = 0; r < kMicro; ++r) {
#pragma unroll
    for (int k = 0; k < kKeys; ++k) scores[r][k] = 0;
  }
  for (int c = 0; c < columns; c += 4) {
    float4 q[kMicro];
#pragma unroll
    for (int r = 0; r < kMicro; ++r) {
      q[r] = *reinterpret_cast<const float4*>(query + (ty * kMicro + r) * stride + c);
    }
#pragma unroll
    for (int k = 0; k < kKeys; ++k) {
      const float4 x = *reinterpret_cast<const float4*>(key + (tx + 16 * k) * stride + c);
#pragma unroll
      for (int r = 0; r < kMicro; ++r) {
        float s = __fmaf_rn(q[r].x, x.x, scores[r][k]);
        s = __fmaf_rn(q[r].y, x.y, s);
        s = __fmaf_rn(q[r].z, x.z, s);
        scores[r][k] = __fmaf_rn(q[r].w, x.w, s);
      }
    }
  }
}

// Lets the sequence's last key, if it is one of the block that starts at `start`, count as often as
// it stands for rows.
template <int kMicro>
__device__ inline void CountLastKey(const Item& item, int start, float (&scores)[kMicro][kMicro]) {
  const int last = item.length - 1 - start;  // in the block
  if (item.last_key_log2 == 0 || last >= 16 * kMicro) return;
  const int tx = threadIdx.x % 16;
#pragma unroll
  for (int k = 0; k < kMicro; ++k) {
    if (tx + 16 * k != last) continue;
#pragma unroll
    for (int r = 0; r < kMicro; ++r) scores[r][k] += item.last_key_log2;
  }
}

// -inf where a row does not see a key of the block that starts at `start`.
template <int kMicro>
__device__ inline void MaskTile(const TileKeys& keys, int start, int end,
                                float (&scores)[kMicro][kMicro]) {
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
#pragma unroll
  for (int r = 0; r < kMicro; ++r) {
    const KeyRange row = keys.seen(keys.row + ty * kMicro + r, end);
#pragma unroll
    for (int k = 0; k < kMicro; ++k) {
      if (!keys.sees(row, start + tx + 16 * k)) scores[r][k] = -INFINITY;
    }
  }
}

// The same, where `ranges` holds what each row of the tile sees.
template <int kMicro>
__device__ inline void MaskTile(const TileKeys& keys, int start, const KeyRange* ranges,
                                float (&scores)[kMicro][kMicro]) {
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
#pragma unroll
  for (int r = 0; r < kMicro; ++r) {
    const KeyRange inside = ranges[ty * kMicro + r];
#pragma unroll
    for (int k = 0; k < kMicro; ++k) {
      if (!keys.sees(inside, start + tx + 16 * k)) scores[r][k] = -INFINITY;
    }
  }
}

// Over the 16 lanes that share a row.
__device__ inline float RowMax(float x) {
  for (int lanes = 8; lanes > 0; lanes /= 2)
    x = fmaxf(x, __shfl_xor_sync(cuda::kFullMask, x, lanes));
  return x;
}
__device__ inline float RowSum(float x) {
  for (int lanes = 8; lanes > 0; lanes /= 2) x += __shfl_xor_sync(cuda::kFullMask, x, lanes);
  return x;
}

}  // namespace attenuator::attention
