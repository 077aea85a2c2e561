// How YosoAttention's table path divides a sequence of more than kSharedKeys keys: parts, which
// blocks sort, and pieces, which warps add (long_sort.cu, long_add.cu).
#pragma once

#include "ops/yoso/cuda/buckets.h"

namespace attenuator::yoso {

// Beside a key in the last order: a bucket begins. Keys are fewer than 2^31.
inline constexpr int kStart = static_cast<int>(1u << 31);

// The first word of a (head, hash), numbered within the job.
__device__ inline int* LongScratch(const Node& node, const Job& job, int local) {
  return reinterpret_cast<int*>(node.scratch + job.orders) + local * LongSizesOf(node, job).words;
}

// Blocks of a (head, hash), one warp a piece.
__host__ __device__ inline int PieceBlocksOf(const LongSizes& sizes) {
  return Quotient(sizes.pieces, kBlockWarps);
}

// How many buckets begin in some neighbouring pieces, whose places are `places`: the same in every
// lane. Up to 8 bits of codes a bucket is a digit, whose first place Offsets has left with part 0;
// beyond that Mark has counted.
__device__ inline int CountBegun(const Node& node, const Job& job, const int* orders,
                                 const LongSizes& sizes, const Run& pieces, const Run& places) {
  const int lane = threadIdx.x % cuda::kWarp;
  int sum = 0;
  if (node.hash_bits > kDigitBits) {
    for (int i = pieces.begin + lane; i < pieces.end; i += cuda::kWarp) {
      sum += orders[sizes.starts + i];
    }
    return WarpTotal(sum);
  }
  const int* firsts = orders + sizes.counters;
#pragma unroll
  for (int digit = lane; digit < kDigits; digit += cuda::kWarp) {
    const int first = firsts[digit];
    const int next = digit + 1 < kDigits ? firsts[digit + 1] : job.num_keys;
    sum += first < next && first >= places.begin && first < places.end;
  }
  return WarpTotal(sum);
}

// The calling warp's piece.
struct PiecePlace {
  int local;  // head, hash
  int index;  // of the piece; not below `pieces` where the warp has none, and then empty
  int run;
  Run all, piece;  // its run, itself
};

__device__ inline PiecePlace PieceOf(const Job& job, const LongSizes& sizes) {
  const int blocks = PieceBlocksOf(sizes);
  const int block = static_cast<int>(blockIdx.x) - job.first_block;
  const int of_run = sizes.pieces / kBlockWarps;
  PiecePlace place;
  place.local = block / blocks;
  place.index = block % blocks * kBlockWarps + static_cast<int>(threadIdx.x) / cuda::kWarp;
  place.run = min(place.index / of_run, kBlockWarps - 1);
  place.all = WarpRun(job.num_keys, place.run);
  const int begin = place.all.begin + place.index % of_run * kPieceKeys;
  place.piece = {min(begin, place.all.end), min(begin + kPieceKeys, place.all.end)};
  if (place.index >= sizes.pieces) place.piece = {0, 0};
  return place;
}

}  // namespace attenuator::yoso
