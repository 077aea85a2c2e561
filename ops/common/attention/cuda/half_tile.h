// What the kernels on tiles in float16 and bfloat16 share: their sizes, how rows come into shared
// memory, and a warp's products of rows with rows. attention_half.cu has the scheme.
#pragma once

#include "ops/common/attention/cuda/tile.h"

namespace attenuator::attention {

constexpr int kHalfThreads = 128, kHalfWarps = kHalfThreads / cuda::kWarp;

// Sizes of a kernel, S below. kDim: columns that registers and shared memory have room for;
// kRowTiles: groups of 16 rows of a warp; kKeys: keys at a time; kWhole: head_dim and value_dim are
// exactly kDim; kBuffers: blocks of keys, and of values, that shared memory holds; kTerms: scores
// have terms (terms_half.h), which take more of it.
template <int kDimension, int kTiles, int kBlock, bool kExact, int kHeld = 1,
          bool kHasTerms = false>
struct Shape {
  static constexpr int kDim = kDimension, kRowTiles = kTiles, kKeys = kBlock, kBuffers = kHeld;
  static constexpr bool kWhole = kExact, kTerms = kHasTerms;
  static constexpr int kRows = 16 * kRowTiles * kHalfWarps, kStride = kDim + 8;
  static constexpr int kSteps = kDim / 16, kKeyTiles = kKeys / 8, kValueTiles = kDim / 8;
  static constexpr bool kKeepQuery = kDim <= 32;  // wider queries would not fit in registers
  static constexpr std::size_t kShared =
      sizeof(std::uint16_t) * (kRows + 2 * kBuffers * kKeys) * kStride + sizeof(KeyRange) * kRows;

  // Blocks of threads that a multiprocessor holds, at most two. `most`: shared memory that one
  // block may have, 1 KiB less than the multiprocessor has; CUDA adds 1 KiB to each block.
  static constexpr int Resident(int most) {
    return most >= 2 * static_cast<int>(kShared) + 1024 ? 2 : 1;
  }
};

// What a lane holds of row 16 m + 8 half + lane / 4 of its warp: the largest score, the lane's part
// of the sum, and columns 8 n + lane % 4 * 2 + {0, 1} of the output.
template <class S>
using Scores = float[S::kRowTiles][S::kKeyTiles][4];
template <class S>
using Output = float[S::kRowTiles][S::kValueTiles][4];
template <class S>
using RowValues = float[S::kRowTiles][2];
// The queries' fragments, where they stay in registers (kKeepQuery).
template <class S>
using Queries = std::uint32_t[S::kKeepQuery ? S::kRowTiles : 1][S::kKeepQuery ? S::kSteps : 1][4];

// Loads columns c to c + 7 of a row, which lie at `from`: zeros where the row is not `there`, and
// from `columns` on. `readable`: 16 bytes that may be read.
template <class T, class S>
__device__ __forceinline__ void LoadChunk(T* target, const T* from, const T* readable, bool there,
                                          int c, int columns, bool vector) {
  if (S::kWhole || vector) {
    there = there && (S::kWhole || c < columns);
    cuda::CopyAsync16(target, there ? from : readable, there);
  } else {
    for (int e = 0; e < 8; ++e) {
      target[e] = there && c + e < columns ? from[e] : cuda::FromFloat<T>(0.0f);
    }
  }
}

// Loads `rows` rows of `source` into `tile`: zeros outside rows [begin, end), and from `columns` to
// the next multiple of 16.
template <class T, class S>
__device__ __forceinline__ void LoadRows(T* tile, int rows, const T* source,
                                         std::int64_t source_stride, int begin, int end,
                                         int columns, bool vector) {
  const int chunks = S::kWhole ? S::kDim / 8 : (columns + 15) / 16 * 2;
  for (int index = threadIdx.x; index < rows * chunks; index += kHalfThreads) {
    const int i = index / chunks, c = index % chunks * 8;
    LoadChunk<T, S>(tile + i * S::kStride + c, source + i * source_stride + c, source,
                    i >= begin && i < end, c, columns, vector);
  }
}

// LoadRows of a block of keys or values, kKeys rows. A thread copies the same columns of every
// kApart-th row, so that each address is the one before plus a constant, and a block whose rows all
// exist needs no test for each row. That takes registers, of which scores with terms leave none.
template <class T, class S>
__device__ __forceinline__ void LoadBlock(T* tile, const T* source, std::int64_t source_stride,
                                          int begin, int end, int columns, bool vector) {
  if constexpr (S::kTerms) {
    LoadRows<T, S>(tile, S::kKeys, source, source_stride, begin, end, columns, vector);
    return;
  }
  constexpr int kChunks = S::kDim / 8, kApart = kHalfThreads / kChunks;
  static_assert(kHalfThreads % kChunks == 0 && S::kKeys % kApart == 0);
  const int first = static_cast<int>(threadIdx.x) / kChunks;
  const int c = static_cast<int>(threadIdx.x) % kChunks * 8;
  if (!S::kWhole && c >= (columns + 15) / 16 * 16) return;
  // Rows of a block lie within 2^31 elements, and a 32-bit offset saves a register.
  const T* from = source + (first * static_cast<int>(source_stride) + c);
  T* target = tile + first * S::kStride + c;
  if ((S::kWhole || (vector && c < columns)) && begin <= 0 && end >= S::kKeys) {
#pragma unroll
    for (int row = 0; row < S::kKeys; row += kApart, from += kApart * source_stride) {
      cuda::CopyAsync16(target + row * S::kStride, from);
    }
    return;
  }
#pragma unroll 1  // a sequence's first and last blocks alone
  for (int i = first; i < S::kKeys; i += kApart, from += kApart * source_stride) {
    LoadChunk<T, S>(target, from, source, i >= begin && i < end, c, columns, vector);
    target += kApart * S::kStride;
  }
}

// Rows 16 m to 16 m + 15 of the warp's queries, columns 16 k to 16 k + 15.
template <class T, class S>
__device__ __forceinline__ void LoadQuery(std::uint32_t (&fragment)[4], const T* own_rows, int m,
                                          int k) {
  const int lane = threadIdx.x % cuda::kWarp;
  cuda::LoadMatrices(fragment,
                     own_rows + (m * 16 + lane % 16) * S::kStride + k * 16 + lane / 16 * 8);
}

template <class T, class S>
__device__ __forceinline__ void KeepQueries(const T* own_rows, int head_dim, Queries<S>& kept) {
  if constexpr (S::kKeepQuery) {
#pragma unroll
    for (int m = 0; m < S::kRowTiles; ++m) {
#pragma unroll
      for (int k = 0; k < S::kSteps; ++k) {
        if (S::kWhole || k * 16 < head_dim) LoadQuery<T, S>(kept[m][k], own_rows, m, k);
      }
    }
  }
}

// scores = the warp's queries times the block of keys.
template <class T, class S>
__device__ __forceinline__ void ScoreKeys(const T* own_rows, const Queries<S>& kept, const T* key,
                                          int head_dim, Scores<S>& scores) {
  const int lane = threadIdx.x % cuda::kWarp;
#pragma unroll
  for (int m = 0; m < S::kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < S::kKeyTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) scores[m][n][e] = 0;
    }
  }
#pragma unroll
  for (int k = 0; k < S::kSteps; ++k) {
    if (!S::kWhole && k * 16 >= head_dim) continue;
    std::uint32_t a[S::kRowTiles][4];
#pragma unroll
    for (int m = 0; m < S::kRowTiles; ++m) {
      if constexpr (S::kKeepQuery) {
#pragma unroll
        for (int e = 0; e < 4; ++e) a[m][e] = kept[m][k][e];
      } else {
        LoadQuery<T, S>(a[m], own_rows, m, k);
      }
    }
#pragma unroll
    for (int n = 0; n < S::kKeyTiles; n += 2) {
      std::uint32_t b[4];
      cuda::LoadMatrices(
          b, key + (n * 8 + lane % 8 + lane / 16 * 8) * S::kStride + k * 16 + lane / 8 % 2 * 8);
      const std::uint32_t low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
#pragma unroll
      for (int m = 0; m < S::kRowTiles; ++m) {
        cuda::Mma<T>(scores[m][n], a[m], low);
        cuda::Mma<T>(scores[m][n + 1], a[m], high);
      }
    }
  }
}

}  // namespace attenuator::attention
