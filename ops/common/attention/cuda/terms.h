// The terms of a score for the distance of its query and its key (`Terms`), on tiles in float32 and
// on single rows; terms_half.h has them on tiles in float16 and bfloat16.
//
// The pairs of a tile of queries and keys lead to some range of rows of the tables: 64 consecutive
// queries and keys are 127 distances apart, hence at most 127 rows where buckets rise by one, fewer
// where they are logarithmic, more where `positions` have gaps. The range is taken in chunks. A
// chunk of a table passes through shared memory, its products with the tile's queries (pos_key) or
// keys (pos_query) go to shared memory too, and each pair whose row lies in the chunk adds one of
// them to its score. So no products lie in device memory, whatever the length, and a table row that
// is not finite reaches only the pairs that lead to it.
//
// Cost of a tile of 64 queries and 64 keys whose range is r rows, rounded up to chunks: each table
// takes r / 64 times the multiply-adds of the scores themselves and reads r of its rows, mostly
// from the L2 cache. Without positions r is at most 128: with both tables five times the
// multiply-adds of the scores, and three times the rows read. Computing `[T, rows]` products first
// would take as many multiply-adds up to about 256 tokens and fewer beyond, and write and gather 4
// bytes of device memory for each token, head, row and table.
//
// Numerics: each product is one chain of multiply-adds over the columns and is added to the score
// once, in the order of the chunks, so that a pair's bits do not depend on the tile's other pairs.
#pragma once

#include "ops/common/attention/cuda/tile.h"

namespace attenuator::attention {

// Row of the tables for query i and key j of a sequence whose first row is `begin`.
__device__ inline int TableRow(const Terms& terms, int begin, int i, int j) {
  int distance = max(min(i - j, terms.reach), -terms.reach);
  if (terms.positions != nullptr) {
    // Unsigned, since positions may be anything and so farther apart than an int64 can say.
    const std::int64_t at = __ldg(terms.positions + begin + i);
    const std::int64_t key_at = __ldg(terms.positions + begin + j);
    const bool behind = at >= key_at;
    const std::uint64_t apart =
        behind ? static_cast<std::uint64_t>(at) - static_cast<std::uint64_t>(key_at)
               : static_cast<std::uint64_t>(key_at) - static_cast<std::uint64_t>(at);
    const int gap =
        apart < static_cast<std::uint64_t>(terms.reach) ? static_cast<int>(apart) : terms.reach;
    distance = behind ? gap : -gap;
  }
  return __ldg(terms.buckets + distance + terms.reach);
}

// A head's columns of a row of pos_key or pos_query.
template <class T>
__device__ inline const T* TableColumns(const Call& call, const void* table, int row, int head) {
  const std::int64_t stride = static_cast<std::int64_t>(call.heads) * call.head_dim;
  return static_cast<const T*>(table) + row * stride + head * call.head_dim;
}

template <class T>
__device__ inline float BiasOf(const Call& call, int row, int head) {
  const std::int64_t at = static_cast<std::int64_t>(row) * call.heads + head;
  return cuda::ToFloat(static_cast<const T*>(call.terms.bias)[at]) * kLog2E;
}

// What columns first, first + step, ... give to the score of key j for row 0 of its sequence. The
// query is scaled; who takes column 0 adds the bias, and what the last key counts more.
template <class T, bool kTerms>
__device__ inline float RowScore(const Call& call, const Item& item, int head, const float* query,
                                 const T* key, int j, int first, int step) {
  float dot = 0;
  if constexpr (!kTerms) {
    for (int c = first; c < call.head_dim; c += step) {
      dot = __fmaf_rn(query[c], cuda::ToFloat(key[c]), dot);
    }
  } else {
    const Terms& terms = call.terms;
    const int row = TableRow(terms, item.begin, 0, j);
    const T *pos_key = nullptr, *pos_query = nullptr;
    if (terms.pos_key != nullptr) pos_key = TableColumns<T>(call, terms.pos_key, row, head);
    if (terms.pos_query != nullptr) pos_query = TableColumns<T>(call, terms.pos_query, row, head);
    for (int c = first; c < call.head_dim; c += step) {
      const float x = cuda::ToFloat(key[c]);
      dot = __fmaf_rn(query[c], x, dot);
      if (pos_key != nullptr) dot = __fmaf_rn(query[c], cuda::ToFloat(pos_key[c]), dot);
      if (pos_query != nullptr) {
        dot = __fmaf_rn(x, cuda::ToFloat(pos_query[c]) * call.scale, dot);
      }
    }
    if (terms.bias != nullptr && first == 0) dot += BiasOf<T>(call, row, head);
  }
  if (first == 0 && j == item.length - 1) dot += item.last_key_log2;
  return dot;
}

// The lowest and the highest of the rows that a block's pairs lead to.
struct TableRange {
  int low, high;
};

// Over a block of kWarps warps. `shared` holds 2 kWarps numbers; a barrier has to lie between what
// is read of it here and its next use.
template <int kWarps>
__device__ inline TableRange BlockRange(TableRange range, int* shared) {
  for (int lanes = cuda::kWarp / 2; lanes > 0; lanes /= 2) {
    range.low = min(range.low, __shfl_xor_sync(cuda::kFullMask, range.low, lanes));
    range.high = max(range.high, __shfl_xor_sync(cuda::kFullMask, range.high, lanes));
  }
  const int warp = threadIdx.x / cuda::kWarp;
  if (threadIdx.x % cuda::kWarp == 0) {
    shared[2 * warp] = range.low;
    shared[2 * warp + 1] = range.high;
  }
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) {
    range.low = min(range.low, shared[2 * w]);
    range.high = max(range.high, shared[2 * w + 1]);
  }
  return range;
}

// A pair that does not count has this row, which lies in no range and in no chunk.
constexpr int kNoRow = -1;

__device__ inline void Widen(TableRange& range, int row) {
  if (row == kNoRow) return;
  range.low = min(range.low, row);
  range.high = max(range.high, row);
}
__device__ inline bool InChunk(int row, int first, int count) {
  return static_cast<unsigned>(row - first) < static_cast<unsigned>(count);
}

// Float32 tiles of 16 kMicro queries and keys (tile.h) with chunks of 16 kTable rows, kTable at
// most kMicro.
template <int kMicro, int kTable>
struct FloatTerms {
  static constexpr int kChunk = 16 * kTable, kProductStride = kChunk + 4;
  static constexpr int kWarps = kTileThreads / cuda::kWarp;

  float* table;     // [kChunk, TileStride(head_dim)]
  float* products;  // [16 kMicro, kProductStride]
  int* range;       // [2 kWarps]

  // Floats for `table` and `range`.
  static __host__ __device__ int Floats(int head_dim) {
    return kChunk * TileStride(head_dim) + 2 * kWarps;
  }
  __device__ FloatTerms(float* memory, float* product_memory, int head_dim)
      : table(memory),
        products(product_memory),
        range(reinterpret_cast<int*>(memory + kChunk * TileStride(head_dim))) {}

  // products[i][c] = row i of `rows` times row first + c of the table, times `factor`.
  template <class T>
  __device__ __forceinline__ void Multiply(const Call& call, const void* source, int head,
                                           int first, float factor, const float* rows) const {
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    __syncthreads();  // table and products before have been read
    LoadTile(table, kChunk, TableColumns<T>(call, source, first, head),
             static_cast<std::int64_t>(call.heads) * call.head_dim, 0, call.terms.rows - first,
             call.head_dim, factor);
    __syncthreads();
    float tile[kMicro][kTable];
    ScoreTile<kMicro, kTable>(rows, table, call.head_dim, tile);
#pragma unroll
    for (int r = 0; r < kMicro; ++r) {
#pragma unroll
      for (int k = 0; k < kTable; ++k) {
        products[(ty * kMicro + r) * kProductStride + tx + 16 * k] = tile[r][k];
      }
    }
    __syncthreads();
  }

  // Adds to each score the product of its query or, where not `by_query`, of its key.
  __device__ __forceinline__ void Take(const int (&rows)[kMicro][kMicro], int first, bool by_query,
                                       float (&scores)[kMicro][kMicro]) const {
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
#pragma unroll
    for (int r = 0; r < kMicro; ++r) {
#pragma unroll
      for (int k = 0; k < kMicro; ++k) {
        const int own = by_query ? ty * kMicro + r : tx + 16 * k;
        if (InChunk(rows[r][k], first, kChunk)) {
          scores[r][k] += products[own * kProductStride + rows[r][k] - first];
        }
      }
    }
  }

  // Adds the terms to the scores of keys [start, end). `query`, which is scaled, and `key` are the
  // tiles that the scores come from; T is the type of the tables.
  template <class T>
  __device__ __forceinline__ void Add(const Call& call, const Item& item, int head,
                                      const TileKeys& keys, int start, int end, const float* query,
                                      const float* key, float (&scores)[kMicro][kMicro]) const {
    const Terms& terms = call.terms;
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    int rows[kMicro][kMicro];
    TableRange mine{terms.rows, kNoRow};
#pragma unroll
    for (int r = 0; r < kMicro; ++r) {
#pragma unroll
      for (int k = 0; k < kMicro; ++k) {
        const int i = keys.row + ty * kMicro + r, j = start + tx + 16 * k;
        rows[r][k] = i < keys.row_end && j < end ? TableRow(terms, item.begin, i, j) : kNoRow;
        Widen(mine, rows[r][k]);
        if (terms.bias != nullptr && rows[r][k] != kNoRow) {
          scores[r][k] += BiasOf<T>(call, rows[r][k], head);
        }
      }
    }
    if (terms.pos_key == nullptr && terms.pos_query == nullptr) return;
    const TableRange all = BlockRange<kWarps>(mine, range);
    for (int first = all.low; first <= all.high; first += kChunk) {
      if (terms.pos_key != nullptr) {
        Multiply<T>(call, terms.pos_key, head, first, 1.0f, query);
        Take(rows, first, true, scores);
      }
      if (terms.pos_query != nullptr) {
        Multiply<T>(call, terms.pos_query, head, first, call.scale, key);
        Take(rows, first, false, scores);
      }
    }
  }
};

}  // namespace attenuator::attention
