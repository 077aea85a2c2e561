// SoftmaxAttention on CUDA in float32, and the one-row path of every type.
//
// Tiles: a block of 256 threads owns 64 (or, at head_dim above 128, 32) query rows of one head and
// walks over the keys in blocks as long, with a running maximum and sum (FlashAttention). Queries
// stay in shared memory, keys and then values pass through one buffer beside them, probabilities
// through another: 85 KiB at head_dim 128, 50 KiB at 64. Thread layout and scores are in
// tile.h; of the output a thread owns its kMicro rows and four columns of every 64.
// A step takes one block of keys: LoadTile, ScoreTile, CountLastKey and MaskTile (tile.h), then
// Normalize and AddValues; StoreRows writes the rows after the last.
// Scores with terms (terms.h) have kernels of their own: 64 rows at head_dim up to 64, else 32, and
// at most 86 KiB. Products with the tables lie where the probabilities go next.
// float32 stays float32: no TF32, products are fused multiply-adds on the CUDA cores.
//
// One row (`queries = first`, the row of a global token): a block of 256 threads takes 256 keys at
// a time: eight lanes score a key, a thread holds one score, then threads own columns of the value.
//
// Memory: each block reads its sequence's keys and values once (under a window, its band), out of
// the L2 cache where tiles of the same head run at the same time. A row's sums run in an order that
// its own sequence fixes, so its bits depend neither on the batch nor on the launch.
#include "ops/common/attention/cuda/terms.h"

namespace attenuator::attention {
namespace {

using cuda::FromFloat;
using cuda::ToFloat;

// A block's tile: kMicro rows and keys a thread, value columns in groups of 64.
template <int kMicro>
struct FloatShape {
  static constexpr int kRows = 16 * kMicro, kKeys = 16 * kMicro;
  static constexpr int kProbabilityStride = kKeys + 4;
};

// Turns scores into probabilities relative to the largest score so far, which go to shared memory,
// and rescales what there is of sum and output.
template <int kMicro, int kGroups>
__device__ __forceinline__ void Normalize(const float (&scores)[kMicro][kMicro],
                                          float (&largest)[kMicro], float (&sum)[kMicro],
                                          float (&output)[kMicro][4 * kGroups],
                                          float* probabilities) {
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
#pragma unroll
  for (int r = 0; r < kMicro; ++r) {
    float most = largest[r];
#pragma unroll
    for (int k = 0; k < kMicro; ++k) most = fmaxf(most, scores[r][k]);
    most = RowMax(most);
    const float factor = Exp2(largest[r] - most);
    largest[r] = most;
    float part = 0;
#pragma unroll
    for (int k = 0; k < kMicro; ++k) {
      const float p = Exp2(scores[r][k] - most);
      part += p;
      probabilities[(ty * kMicro + r) * FloatShape<kMicro>::kProbabilityStride + tx + 16 * k] = p;
    }
    sum[r] = __fmaf_rn(sum[r], factor, RowSum(part));
#pragma unroll
    for (int c = 0; c < 4 * kGroups; ++c) output[r][c] *= factor;
  }
}

// output += probabilities times the block of values.
template <int kMicro, int kGroups>
__device__ __forceinline__ void AddValues(const float* probabilities, const float* values,
                                          int value_dim, float (&output)[kMicro][4 * kGroups]) {
  using S = FloatShape<kMicro>;
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16, value_stride = TileStride(value_dim);
  for (int j = 0; j < S::kKeys; j += 4) {
    float4 p[kMicro];
#pragma unroll
    for (int r = 0; r < kMicro; ++r) {
      p[r] = *reinterpret_cast<const float4*>(probabilities +
                                              (ty * kMicro + r) * S::kProbabilityStride + j);
    }
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int column = 64 * g + 4 * tx;
      if (column >= value_dim) continue;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float4 v = *reinterpret_cast<const float4*>(values + (j + k) * value_stride + column);
#pragma unroll
        for (int r = 0; r < kMicro; ++r) {
          const float weight = k == 0 ? p[r].x : k == 1 ? p[r].y : k == 2 ? p[r].z : p[r].w;
          output[r][4 * g] = __fmaf_rn(weight, v.x, output[r][4 * g]);
          output[r][4 * g + 1] = __fmaf_rn(weight, v.y, output[r][4 * g + 1]);
          output[r][4 * g + 2] = __fmaf_rn(weight, v.z, output[r][4 * g + 2]);
          output[r][4 * g + 3] = __fmaf_rn(weight, v.w, output[r][4 * g + 3]);
        }
      }
    }
  }
}

// Divides by the sums and writes the rows. Row 0 of a global window is FirstRows' to write.
template <int kMicro, int kGroups>
__device__ __forceinline__ void StoreRows(const Call& call, const Item& item, const TileKeys& keys,
                                          int head, const float (&output)[kMicro][4 * kGroups],
                                          const float (&sum)[kMicro]) {
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
#pragma unroll
  for (int r = 0; r < kMicro; ++r) {
    const int row = keys.row + ty * kMicro + r;
    if (row >= keys.row_end || (row == 0 && keys.global)) continue;
    const float inverse = 1.0f / sum[r];
    float* out = static_cast<float*>(call.output) + (item.query_row + row) * call.value_stride +
                 head * call.value_dim;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int column = 64 * g + 4 * tx + c;
        if (column < call.value_dim) out[column] = output[r][4 * g + c] * inverse;
      }
    }
  }
}

// kTable: rows of the tables of terms at a time, divided by 16; 0 where there are no terms. Tiles
// of 32 rows, and those with terms, would spill registers if two blocks had to fit a
// multiprocessor.
template <int kMicro, int kGroups, int kTable>
__global__ __launch_bounds__(kTileThreads, kMicro == 4 && kTable == 0 ? 2 : 1) void FloatTiles(
    cuda::Batch<Item> batch, Call call) {
  using S = FloatShape<kMicro>;
  const int tile = static_cast<int>(blockIdx.x) + batch.items[0].first_tile;
  const Item item = ItemOf(batch, tile);
  const int head = static_cast<int>(blockIdx.y);
  const TileKeys keys = KeysOf(item, (tile - item.first_tile) * S::kRows, S::kRows, call.window,
                               call.global_token, S::kKeys, call.ranges);
  const int widest = max(TileStride(call.head_dim), TileStride(call.value_dim));
  float* query = cuda::SharedMemory<float>();
  float* operand = query + S::kRows * TileStride(call.head_dim);
  float* probabilities = operand + S::kKeys * widest;
  // Which keys each row sees: in shared memory, since registers have no room for it.
  auto* ranges = reinterpret_cast<KeyRange*>(probabilities + S::kRows * S::kProbabilityStride);
  if (threadIdx.x < S::kRows) {
    ranges[threadIdx.x] = keys.seen(keys.row + static_cast<int>(threadIdx.x), keys.high);
  }

  const std::int64_t first_query = (item.query_row + keys.row) * call.query_stride;
  LoadTile(query, S::kRows,
           static_cast<const float*>(call.query) + first_query + head * call.head_dim,
           call.query_stride, 0, keys.row_end - keys.row, call.head_dim, call.scale);
  const float* key_rows =
      static_cast<const float*>(call.key) + item.begin * call.query_stride + head * call.head_dim;
  const float* value_rows = static_cast<const float*>(call.value) + item.begin * call.value_stride +
                            head * call.value_dim;

  float largest[kMicro], sum[kMicro], output[kMicro][4 * kGroups];
#pragma unroll
  for (int r = 0; r < kMicro; ++r) {
    largest[r] = kLowest;
    sum[r] = 0;
#pragma unroll
    for (int c = 0; c < 4 * kGroups; ++c) output[r][c] = 0;
  }
  for (int step = 0; step < keys.steps; ++step) {
    const int start = keys.start(step, S::kKeys), end = keys.end(start, S::kKeys);
    const int low = keys.begin(start) - start;
    __syncthreads();  // the last step's values have been read
    LoadTile(operand, S::kKeys, key_rows + start * call.query_stride, call.query_stride, low,
             end - start, call.head_dim, 1.0f);
    __syncthreads();
    float scores[kMicro][kMicro];
    ScoreTile<kMicro>(query, operand, call.head_dim, scores);
    if constexpr (kTable > 0) {
      const FloatTerms<kMicro, kTable> terms(reinterpret_cast<float*>(ranges + S::kRows),
                                             probabilities, call.head_dim);
      terms.template Add<float>(call, item, head, keys, start, keys.end(start, S::kKeys), query,
                                operand, scores);
    }
    CountLastKey(item, start, scores);
    if (keys.masked(start, S::kKeys)) MaskTile(keys, start, ranges, scores);
    __syncthreads();  // keys have been read
    LoadTile(operand, S::kKeys, value_rows + start * call.value_stride, call.value_stride, low,
             end - start, call.value_dim, 1.0f);
    Normalize<kMicro, kGroups>(scores, largest, sum, output, probabilities);
    __syncthreads();
    AddValues<kMicro, kGroups>(probabilities, operand, call.value_dim, output);
  }
  StoreRows<kMicro, kGroups>(call, item, keys, head, output, sum);
}

constexpr int kRowThreads = 256, kRowWarps = kRowThreads / cuda::kWarp;

template <class T, bool kTerms>
__global__ __launch_bounds__(kRowThreads, 4) void FirstRows(cuda::Batch<Item> batch, Call call) {
  const Item item = batch.items[blockIdx.x];
  const int head = static_cast<int>(blockIdx.y), t = static_cast<int>(threadIdx.x);
  const int lane = t % cuda::kWarp, warp = t / cuda::kWarp;
  float* query = cuda::SharedMemory<float>();  // [head_dim], at most 256
  float* scores = query + kHeadDimHigh;        // [256]
  float* maxima = scores + kRowThreads;        // [warps]
  float* sums = maxima + kRowWarps;            // [warps]
  T* out =
      static_cast<T*>(call.output) + item.query_row * call.value_stride + head * call.value_dim;
  if (item.length == 0) {
    for (int c = t; c < call.value_dim; c += kRowThreads) out[c] = FromFloat<T>(0.0f);
    return;
  }
  if (!call.first && !IsNarrow(item, call.window, call.ranges)) return;
  const int seen = FirstRowKeys(item, call);
  const T* query_row =
      static_cast<const T*>(call.query) + item.query_row * call.query_stride + head * call.head_dim;
  const T* key_rows =
      static_cast<const T*>(call.key) + item.begin * call.query_stride + head * call.head_dim;
  const T* value_rows =
      static_cast<const T*>(call.value) + item.begin * call.value_stride + head * call.value_dim;
  if (t < call.head_dim) query[t] = ToFloat(query_row[t]) * call.scale;
  // Threads that share a column take every `parts`-th key.
  const int span = (call.value_dim + cuda::kWarp - 1) / cuda::kWarp * cuda::kWarp;
  const int parts = kRowThreads / span, part = t / span, column = t % span;
  const bool owner = part < parts && column < call.value_dim;
  float largest = kLowest, sum = 0, output = 0;
  __syncthreads();
  for (int start = 0; start < seen; start += kRowThreads) {
    const int count = min(kRowThreads, seen - start);
    for (int j = 4 * warp + lane / 8; j < kRowThreads; j += 4 * kRowWarps) {
      float dot = 0;
      if (j < count) {
        const T* key = key_rows + (start + j) * call.query_stride;
        dot = RowScore<T, kTerms>(call, item, head, query, key, start + j, lane % 8, 8);
      }
      for (int lanes = 4; lanes > 0; lanes /= 2)
        dot += __shfl_xor_sync(cuda::kFullMask, dot, lanes);
      if (lane % 8 == 0) scores[j] = j < count ? dot : -INFINITY;
    }
    __syncthreads();
    const float score = scores[t];
    const float mine = cuda::WarpMax(score);
    if (lane == 0) maxima[warp] = mine;
    __syncthreads();
    float most = largest;
    for (int w = 0; w < kRowWarps; ++w) most = fmaxf(most, maxima[w]);
    const float factor = Exp2(largest - most), p = Exp2(score - most);
    largest = most;
    scores[t] = p;
    const float some = cuda::WarpSum(p);
    if (lane == 0) sums[warp] = some;
    __syncthreads();
    float all = 0;
    for (int w = 0; w < kRowWarps; ++w) all += sums[w];
    sum = __fmaf_rn(sum, factor, all);
    output *= factor;
    if (owner) {
      for (int j = part; j < count; j += parts) {
        output = __fmaf_rn(scores[j], ToFloat(value_rows[(start + j) * call.value_stride + column]),
                           output);
      }
    }
    __syncthreads();  // scores have been read
  }
  scores[t] = output;
  __syncthreads();
  if (part == 0 && owner) {
    for (int other = 1; other < parts; ++other) output += scores[other * span + column];
    out[column] = FromFloat<T>(output * (1.0f / sum));
  }
}

}  // namespace

void LaunchFloatTiles(const cuda::Batch<Item>& batch, int tiles, const Call& call,
                      cuda::Stream stream) {
  const int widest = max(call.head_dim, call.value_dim);
  const auto launch = [&](auto kernel, int micro, int term_floats) {
    const int rows = 16 * micro;
    const std::size_t floats =
        static_cast<std::size_t>(rows) * (TileStride(call.head_dim) + TileStride(widest) + rows +
                                          4 + sizeof(KeyRange) / sizeof(float)) +
        term_floats;
    cuda::Launch("attention, tiles", kernel,
                 dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(call.heads)),
                 kTileThreads, floats * sizeof(float), stream, batch, call);
  };
  if (call.terms.rows > 0) {
    if (widest <= 64)
      return launch(FloatTiles<4, 1, 4>, 4, FloatTerms<4, 4>::Floats(call.head_dim));
    if (widest <= 128)
      return launch(FloatTiles<2, 2, 2>, 2, FloatTerms<2, 2>::Floats(call.head_dim));
    return launch(FloatTiles<2, 4, 1>, 2, FloatTerms<2, 1>::Floats(call.head_dim));
  }
  if (widest <= 64) return launch(FloatTiles<4, 1, 0>, 4, 0);
  if (widest <= 128) return launch(FloatTiles<4, 2, 0>, 4, 0);
  launch(FloatTiles<2, 4, 0>, 2, 0);
}

void LaunchFirstRows(ElementType data, const cuda::Batch<Item>& batch, const Call& call,
                     cuda::Stream stream) {
  const dim3 grid(static_cast<unsigned>(batch.count), static_cast<unsigned>(call.heads));
  const std::size_t floats = kHeadDimHigh + kRowThreads + 2 * kRowWarps;
  const auto launch = [&](auto kernel) {
    cuda::Launch("attention, first rows", kernel, grid, kRowThreads, floats * sizeof(float), stream,
                 batch, call);
  };
  cuda::ForType(data, [&](auto type) {
    using T = decltype(type);
    launch(call.terms.rows > 0 ? FirstRows<T, true> : FirstRows<T, false>);
  });
}

}  // namespace attenuator::attention
