// How important each key is to its sequence, on CUDA: the weight that row 0 gives it, or the
// largest weight that any row gives it, summed over heads.
//
// Each head's weights or maxima lie in scratch memory [H, T]; one thread a key then adds up the
// heads in their order. All of it is float32, whatever the data's type.
//
// Row 0: a block a head. A thread scores every 256th key, with a running maximum and sum; the block
// joins these in a fixed order and scores the keys once more for the weights.
//
// Maxima: a block owns 64 (at head_dim above 128, 32) rows of a head and scores all keys that they
// see twice, in the float32 tiles of tile.h: for each row's maximum and sum, then for the weights.
// A column's maximum goes to memory by atomicMax on its bits, which order non-negative floats, so
// that the order of blocks does not matter. A row that is NaN raises nothing. Row 0 of a global
// window sees other keys than its block: the row kernel raises the maxima by it.
//
// Scores with terms (terms.h) have kernels of their own.
//
// Memory traffic: keys twice for each block of rows (under a window, its band), mostly from L2.
#include "ops/common/attention/cuda/terms.h"

namespace attenuator::attention {
namespace {

using cuda::ToFloat;

constexpr int kThreads = 256, kWarps = kThreads / cuda::kWarp;

__device__ inline void Raise(float* maximum, float weight) {
  if (weight > 0) atomicMax(reinterpret_cast<unsigned*>(maximum), __float_as_uint(weight));
}

// Row 0's weights into `weights`, or, where `raise`, the maxima there raised by those of a row that
// sees all keys though others do not.
template <class T, bool kTerms>
__global__ __launch_bounds__(kThreads, 4) void RowWeights(cuda::Batch<Item> batch, Call call,
                                                          std::int64_t tokens, bool raise,
                                                          float* weights) {
  const Item item = batch.items[blockIdx.x];
  const int head = static_cast<int>(blockIdx.y), t = static_cast<int>(threadIdx.x);
  const bool wide = call.global_token && IsNarrow(item, call.window, call.ranges);
  if (item.length == 0 || (raise && !wide)) return;
  const int seen = FirstRowKeys(item, call);
  float* query = cuda::SharedMemory<float>();  // [kHeadDimHigh]
  float* shared = query + kHeadDimHigh;        // [kWarps]
  const T* query_row =
      static_cast<const T*>(call.query) + item.query_row * call.query_stride + head * call.head_dim;
  const T* key_rows =
      static_cast<const T*>(call.key) + item.begin * call.query_stride + head * call.head_dim;
  float* row = weights + head * tokens + item.begin;
  if (t < call.head_dim) query[t] = ToFloat(query_row[t]) * call.scale;
  const auto score_of = [&](int j) {
    return RowScore<T, kTerms>(call, item, head, query, key_rows + j * call.query_stride, j, 0, 1);
  };
  __syncthreads();
  float mine = kLowest, sum = 0;
  for (int j = t; j < seen; j += kThreads) {
    const float score = score_of(j);
    const float most = fmaxf(mine, score);
    sum = __fmaf_rn(sum, Exp2(mine - most), Exp2(score - most));
    mine = most;
  }
  const float largest =
      cuda::BlockReduce<kWarps>(mine, shared, [](float a, float b) { return fmaxf(a, b); });
  const float all = cuda::BlockReduce<kWarps>(sum * Exp2(mine - largest), shared,
                                              [](float a, float b) { return a + b; });
  const float inverse = 1.0f / all;
  for (int j = t; j < item.length; j += kThreads) {
    float weight = 0;
    if (j < seen) weight = Exp2(score_of(j) - largest) * inverse;
    if (raise) {
      Raise(row + j, weight);
    } else {
      row[j] = weight;
    }
  }
}

// Takes a block of scores into each row's maximum and sum.
template <int kMicro>
__device__ __forceinline__ void TakeScores(const float (&scores)[kMicro][kMicro],
                                           float (&largest)[kMicro], float (&sum)[kMicro]) {
#pragma unroll
  for (int r = 0; r < kMicro; ++r) {
    float most = largest[r];
#pragma unroll
    for (int k = 0; k < kMicro; ++k) most = fmaxf(most, scores[r][k]);
    most = RowMax(most);
    float part = 0;
#pragma unroll
    for (int k = 0; k < kMicro; ++k) part += Exp2(scores[r][k] - most);
    sum[r] = __fmaf_rn(sum[r], Exp2(largest[r] - most), RowSum(part));
    largest[r] = most;
  }
}

// Raises the maxima of `keys` keys, whose scores these are; `factor` is 1 / sum, 0 excludes a row.
template <int kMicro>
__device__ __forceinline__ void RaiseTile(const float (&scores)[kMicro][kMicro],
                                          const float (&largest)[kMicro],
                                          const float (&factor)[kMicro], int keys, float* maxima) {
  const int tx = threadIdx.x % 16, lane = threadIdx.x % cuda::kWarp;
#pragma unroll
  for (int k = 0; k < kMicro; ++k) {
    float most = 0;
#pragma unroll
    for (int r = 0; r < kMicro; ++r) {
      const float p = Exp2(scores[r][k] - largest[r]) * factor[r];
      most = factor[r] > 0 ? fmaxf(most, p) : most;
    }
    most = fmaxf(most, __shfl_xor_sync(cuda::kFullMask, most, 16));
    const int j = tx + 16 * k;
    if (lane < 16 && j < keys) Raise(maxima + j, most);
  }
}

// kTable: rows of the tables of terms at a time, divided by 16; 0 where there are no terms. No
// more blocks a multiprocessor are asked for than fit without spilling registers.
template <class T, int kMicro, int kTable>
__global__ __launch_bounds__(kTileThreads,
                             kTable > 0 ? 1 : 2) void RowMaxima(cuda::Batch<Item> batch, Call call,
                                                                std::int64_t tokens,
                                                                float* weights) {
  constexpr int kRows = 16 * kMicro;
  const Item item = batch.items[blockIdx.z];
  const int row = static_cast<int>(blockIdx.x) * kRows, head = static_cast<int>(blockIdx.y);
  if (row >= item.length) return;
  const TileKeys keys =
      KeysOf(item, row, kRows, call.window, call.global_token, kRows, call.ranges);
  const int stride = TileStride(call.head_dim), ty = threadIdx.x / 16;
  float* query = cuda::SharedMemory<float>();
  float* key = query + kRows * stride;
  LoadTile(query, kRows,
           static_cast<const T*>(call.query) + (item.query_row + row) * call.query_stride +
               head * call.head_dim,
           call.query_stride, 0, keys.row_end - row, call.head_dim, call.scale);
  const T* key_rows =
      static_cast<const T*>(call.key) + item.begin * call.query_stride + head * call.head_dim;
  float* maxima = weights + head * tokens + item.begin;
  float scores[kMicro][kMicro], largest[kMicro], sum[kMicro];
  const auto score = [&](int start) {
    const int end = keys.end(start, kRows);
    __syncthreads();  // the keys before have been read
    LoadTile(key, kRows, key_rows + start * call.query_stride, call.query_stride,
             keys.begin(start) - start, end - start, call.head_dim, 1.0f);
    __syncthreads();
    ScoreTile<kMicro>(query, key, call.head_dim, scores);
    if constexpr (kTable > 0) {
      float* products = key + kRows * stride;
      const FloatTerms<kMicro, kTable> terms(products + kRows * (kRows + 4), products,
                                             call.head_dim);
      terms.template Add<T>(call, item, head, keys, start, end, query, key, scores);
    }
    CountLastKey(item, start, scores);
    if (end - start < kRows || keys.masked(start, kRows)) MaskTile(keys, start, end, scores);
  };
#pragma unroll
  for (int r = 0; r < kMicro; ++r) {
    largest[r] = kLowest;
    sum[r] = 0;
  }
  for (int step = 0; step < keys.steps; ++step) {
    score(keys.start(step, kRows));
    TakeScores<kMicro>(scores, largest, sum);
  }
#pragma unroll
  for (int r = 0; r < kMicro; ++r) {
    const int i = row + ty * kMicro + r;
    const bool counts = i < keys.row_end && !(keys.global && i == 0);
    sum[r] = counts ? 1.0f / sum[r] : 0.0f;
  }
  for (int step = 0; step < keys.steps; ++step) {
    const int start = keys.start(step, kRows);
    if (keys.steps > 1) score(start);
    RaiseTile<kMicro>(scores, largest, sum, keys.end(start, kRows) - start, maxima + start);
  }
}

__global__ __launch_bounds__(kThreads) void SumHeads(const float* weights, std::int64_t tokens,
                                                     int heads, float* importance) {
  const std::int64_t j = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (j >= tokens) return;
  float sum = weights[j];
  for (int h = 1; h < heads; ++h) sum += weights[h * tokens + j];
  importance[j] = sum;
}

// Calls launch(kernel, rows of a block, floats of shared memory for terms).
template <class T, class Body>
void LaunchMaxima(const Call& call, const Body& launch) {
  const int micro = FloatMicro(call, call.head_dim), rows = 16 * micro;
  if (call.terms.rows == 0) {
    return micro == 4 ? launch(RowMaxima<T, 4, 0>, 64, 0) : launch(RowMaxima<T, 2, 0>, 32, 0);
  }
  const int products = rows * (rows + 4);
  if (micro == 4) {
    return launch(RowMaxima<T, 4, 4>, rows, products + FloatTerms<4, 4>::Floats(call.head_dim));
  }
  if (call.head_dim <= 128) {
    return launch(RowMaxima<T, 2, 2>, rows, products + FloatTerms<2, 2>::Floats(call.head_dim));
  }
  launch(RowMaxima<T, 2, 1>, rows, products + FloatTerms<2, 1>::Floats(call.head_dim));
}

}  // namespace

void Importance(ElementType data, const Call& call, const std::vector<Item>& items, bool row_0,
                std::int64_t tokens, float* weights, float* importance, cuda::Stream stream) {
  const auto heads = static_cast<unsigned>(call.heads);
  const bool has_terms = call.terms.rows > 0;
  if (!row_0) {
    cuda::ZeroAsync(weights, static_cast<std::size_t>(call.heads * tokens) * sizeof(float), stream);
  }
  cuda::ForBatches(items, [&](const cuda::Batch<Item>& batch) {
    const auto count = static_cast<unsigned>(batch.count);
    int longest = 0;
    for (int i = 0; i < batch.count; ++i) longest = max(longest, batch.items[i].length);
    const auto maxima = [&](auto kernel, int rows, int term_floats) {
      const auto blocks = static_cast<unsigned>((longest + rows - 1) / rows);
      const int floats = 2 * rows * TileStride(call.head_dim) + term_floats;
      cuda::Launch("importance, maxima", kernel, dim3(blocks, heads, count), kTileThreads,
                   sizeof(float) * static_cast<std::size_t>(floats), stream, batch, call, tokens,
                   weights);
    };
    const auto first_rows = [&](auto kernel) {
      cuda::Launch("importance, first rows", kernel, dim3(count, heads), kThreads,
                   (kHeadDimHigh + kWarps) * sizeof(float), stream, batch, call, tokens, !row_0,
                   weights);
    };
    cuda::ForType(data, [&](auto type) {
      using T = decltype(type);
      if (!row_0) LaunchMaxima<T>(call, maxima);
      if (row_0 || (call.window > 0 && call.global_token)) {
        first_rows(has_terms ? RowWeights<T, true> : RowWeights<T, false>);
      }
    });
  });
  cuda::Launch("importance, heads", SumHeads,
               dim3(static_cast<unsigned>((tokens + kThreads - 1) / kThreads)), kThreads, 0, stream,
               static_cast<const float*>(weights), tokens, call.heads, importance);
}

}  // namespace attenuator::attention
