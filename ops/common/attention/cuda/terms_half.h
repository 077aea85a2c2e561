// The terms of a score for the distance of its query and its key, on tiles in float16 and bfloat16.
//
// As in terms.h: chunks of 32 rows of a table pass through shared memory, and their products with
// queries and keys, on tensor cores with float32 sums, through shared memory beside them: more rows
// at a time would take more registers than there are. A warp multiplies its 16 rows of queries,
// then 16 of the keys. Products' rows lie 36 floats apart: consecutive pairs lie a row further and
// a column back, which spreads them over the banks.
#pragma once

#include "ops/common/attention/cuda/half_tile.h"
#include "ops/common/attention/cuda/terms.h"

namespace attenuator::attention {

// A lane's pairs, as Scores has them.
template <class S>
using PairRows = int[S::kKeyTiles][4];

template <class T, class S>
struct HalfTerms {
  static_assert(S::kTerms && S::kRowTiles == 1 && !S::kKeepQuery);

  // As if they were keys without terms.
  using Chunk = Shape<S::kDim, 1, 32, S::kWhole>;
  static constexpr int kChunk = Chunk::kKeys, kProductStride = kChunk + 4;
  static constexpr std::size_t kShared =
      sizeof(std::uint16_t) * kChunk * S::kStride +
      sizeof(float) * (S::kRows * kProductStride + 2 * kHalfWarps);

  T* table;         // [kChunk, kStride]
  float* products;  // [kRows, kProductStride]; kKeys, no more than kRows, where they are the keys'
  int* range;       // [2 kHalfWarps]

  // `memory` is what follows the memory of a kernel without terms: kShared bytes.
  __device__ explicit HalfTerms(T* memory)
      : table(memory),
        products(reinterpret_cast<float*>(memory + kChunk * S::kStride)),
        range(reinterpret_cast<int*>(products + S::kRows * kProductStride)) {}

  // products[i][c] = row i of queries or keys times row first + c of the table. `rows` are the
  // calling warp's own 16; warps without any only load.
  __device__ __forceinline__ void Multiply(const Call& call, const void* source, int head,
                                           int head_dim, int first, const T* rows,
                                           bool has_rows) const {
    const int lane = threadIdx.x % cuda::kWarp, warp = threadIdx.x / cuda::kWarp;
    __syncthreads();  // table and products before have been read
    LoadRows<T, Chunk>(table, kChunk, TableColumns<T>(call, source, first, head),
                       static_cast<std::int64_t>(call.heads) * head_dim, 0, call.terms.rows - first,
                       head_dim, call.vector);
    cuda::CopyCommit();
    cuda::CopyWait<0>();
    __syncthreads();
    if (has_rows) {
      Scores<Chunk> tile;
      const Queries<Chunk> none = {};
      ScoreKeys<T, Chunk>(rows, none, table, head_dim, tile);
      float* row = products + (16 * warp + lane / 4) * kProductStride + lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < Chunk::kKeyTiles; ++n) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          *reinterpret_cast<float2*>(row + 8 * half * kProductStride + 8 * n) =
              make_float2(tile[0][n][2 * half], tile[0][n][2 * half + 1]);
        }
      }
    }
    __syncthreads();
  }

  // Adds to each score the product of its query or, where not `by_query`, of its key.
  __device__ __forceinline__ void Take(const PairRows<S>& rows, int first, bool by_query,
                                       Scores<S>& scores) const {
    const int lane = threadIdx.x % cuda::kWarp, warp = threadIdx.x / cuda::kWarp;
    const int row = by_query ? 16 * warp + lane / 4 : lane % 4 * 2;
    const int next_query = by_query ? 8 : 0, next_key = by_query ? 0 : 1;
#pragma unroll
    for (int n = 0; n < S::kKeyTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int own = row + e / 2 * next_query + (8 * n + e % 2) * next_key;
        if (InChunk(rows[n][e], first, kChunk)) {
          scores[0][n][e] += products[own * kProductStride + rows[n][e] - first];
        }
      }
    }
  }

  // Scales the scores of keys [start, end) and adds the terms. `own_rows` are the warp's queries,
  // `key` is the block's keys.
  __device__ __forceinline__ void Add(const Call& call, const Item& item, int head, int head_dim,
                                      const TileKeys& keys, int start, int end, const T* own_rows,
                                      const T* key, Scores<S>& scores) const {
    const Terms& terms = call.terms;
    const int lane = threadIdx.x % cuda::kWarp, warp = threadIdx.x / cuda::kWarp;
    PairRows<S> rows;
    TableRange mine{terms.rows, kNoRow};
#pragma unroll
    for (int n = 0; n < S::kKeyTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int i = keys.row + 16 * warp + e / 2 * 8 + lane / 4;
        const int j = start + n * 8 + lane % 4 * 2 + e % 2;
        rows[n][e] = i < keys.row_end && j < end ? TableRow(terms, item.begin, i, j) : kNoRow;
        Widen(mine, rows[n][e]);
      }
    }
    if (terms.pos_key != nullptr || terms.pos_query != nullptr) {
      const TableRange all = BlockRange<kHalfWarps>(mine, range);
#pragma unroll 1  // one copy of the products, which take many registers
      for (int first = all.low; first <= all.high; first += kChunk) {
#pragma unroll 1
        for (int side = 0; side < 2; ++side) {
          const bool by_query = side == 0;
          const void* source = by_query ? terms.pos_key : terms.pos_query;
          if (source == nullptr) continue;
          const bool has_rows =
              by_query ? keys.row + 16 * warp < keys.row_end : 16 * warp < S::kKeys;
          Multiply(call, source, head, head_dim, first,
                   by_query ? own_rows : key + 16 * warp * S::kStride, has_rows);
          Take(rows, first, by_query, scores);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < S::kKeyTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (rows[n][e] == kNoRow) continue;  // masked later
        float& score = scores[0][n][e];
        score *= call.scale;
        if (terms.bias != nullptr) score += BiasOf<T>(call, rows[n][e], head);
      }
    }
  }
};

}  // namespace attenuator::attention
