// The two kinds of weights of (query, key) pairs, for the kernels that walk over keys. Each defines
// what a row consists of (4-byte Words), how two words are scored, and which weight a sum of scores
// gives.
#pragma once

#include "ops/yoso/cuda/common.h"

namespace attenuator::yoso {

// Floats of a unit row.
__host__ __device__ inline int UnitDim(int head_dim) {
  return Quotient(head_dim, kUnitPad) * kUnitPad;
}

// One side's rows for the expectation, of one head.
struct UnitSide {
  float* unit;  // [row][UnitDim]
  // In half types also the rows themselves, multiplied by a power of two each that brings the
  // largest coordinate to 1 or more and below 2, [row][UnitDim]; and what they are multiplied by to
  // become unit rows, without the coordinate that a norm lift adds.
  void* rows;
  float* scales;
};
__device__ inline UnitSide UnitSideOf(const Node& node, const Job& job, bool key, int local_head) {
  const std::int64_t count = key ? job.num_keys : job.num_queries, all = job.num_heads * count;
  const int dim = UnitDim(node.unit_dim());
  unsigned char* base = node.scratch + (key ? job.key_codes : job.query_codes);
  unsigned char* rows = base + all * dim * static_cast<int>(sizeof(float));
  unsigned char* scales = rows + all * dim * 2;
  const std::int64_t skipped = local_head * count;
  return {reinterpret_cast<float*>(base) + skipped * dim, rows + skipped * dim * 2,
          reinterpret_cast<float*>(scales) + skipped};
}

// Beyond this cosine rounding would dominate 1 - |x|, so that NearRest takes its place: |q - k|^2 /
// 2 of unit rows, or |q + k|^2 / 2 where they are opposite.
inline constexpr float kNearCosine = 0.99f;
__device__ inline float NearRest(const float* query, const float* key, int dim, bool opposite) {
  const float sign = opposite ? -1.0f : 1.0f;
  float squares = 0;
#pragma unroll 1                      // kernels hold many copies of what is rare
  for (int d = 0; d < dim; d += 4) {  // rows are zeros up to UnitDim
    const float4 q = *reinterpret_cast<const float4*>(query + d);
    const float4 k = *reinterpret_cast<const float4*>(key + d);
    const float qs[4] = {q.x, q.y, q.z, q.w}, ks[4] = {k.x, k.y, k.z, k.w};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float difference = qs[e] - sign * ks[e];
      squares = fmaf(difference, difference, squares);
    }
  }
  return 0.5f * squares;
}

// arccos(x) / (pi sqrt(1 - x)) on [0, 1], Abramowitz and Stegun 4.4.46 over pi.
__device__ inline float ArcShare(float x) {
  float share = -0.00040186340f;
  share = fmaf(share, x, 0.00212315562f);
  share = fmaf(share, x, -0.00543931931f);
  share = fmaf(share, x, 0.00983319113f);
  share = fmaf(share, x, -0.01597097719f);
  share = fmaf(share, x, 0.02832289135f);
  share = fmaf(share, x, -0.06830892011f);
  share = fmaf(share, x, 0.49999999306f);
  return share;
}

// Expected collisions, of unit rows.
struct Expectation {
  using Word = float;
  using Sum = float;

  __device__ static int RowWords(const Node& node, const Job&) { return UnitDim(node.unit_dim()); }
  __device__ static void Score(Sum& sum, Word q, Word k) { sum = fmaf(q, k, sum); }
  __device__ static float Weight(const Node& node, const Job&, Sum sum, int, const Word* query,
                                 const Word* key) {
    const float x = fminf(fmaxf(sum, -1.0f), 1.0f);
    const float magnitude = fabsf(x);
    const float rest =
        magnitude > kNearCosine ? NearRest(query, key, node.unit_dim(), x < 0) : 1.0f - magnitude;
    const float turn = __fsqrt_rn(rest) * ArcShare(magnitude);
    float base = x < 0 ? turn : 1.0f - turn, power = 1.0f;
    for (int bits = node.hash_bits;; base *= base) {
      if (bits & 1) power *= base;
      bits >>= 1;
      if (bits == 0) return power;
    }
  }
};

// Counts of collisions; kHighs has the highest bit of each code of a word.
template <std::uint32_t kHighs, int kCodes>
struct Counts {
  using Word = std::uint32_t;
  using Sum = int;

  __device__ static int RowWords(const Node&, const Job& job) {
    return Quotient(job.num_hashes, kCodePad) * kCodePad / kCodes;
  }
  __device__ static void Score(Sum& sum, Word q, Word k) {
    // The highest bit of a code of `differ` is set where the codes differ: no carry leaves a code.
    const Word x = q ^ k;
    const Word differ = ((x & ~kHighs) + ~kHighs) | x;
    sum += __popc(~differ & kHighs);
  }
  // Padded words always score as equal: `compared` words hold more codes than hashes.
  __device__ static float Weight(const Node&, const Job& job, Sum sum, int compared, const Word*,
                                 const Word*) {
    return static_cast<float>(sum - (compared * kCodes - job.num_hashes));
  }
};
using ByteCounts = Counts<0x80808080u, 4>;
using WordCounts = Counts<0x80008000u, 2>;

// Calls body with the kind of weights of this node.
template <class Body>
void ForKind(const Node& node, bool expectation, const Body& body) {
  if (expectation) return body(Expectation{});
  if (node.code_bytes() == 1) return body(ByteCounts{});
  body(WordCounts{});
}

}  // namespace attenuator::yoso
