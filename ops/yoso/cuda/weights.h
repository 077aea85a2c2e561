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
    float rest = 1.0f - magnitude;
    if (magnitude > 0.99f) {
      // |q + k|^2 / 2 where they are opposite.
      const float sign = x < 0 ? -1.0f : 1.0f;
      float squares = 0;
      for (int d = 0; d < node.unit_dim(); ++d) {
        const float difference = query[d] - sign * key[d];
        squares = fmaf(difference, difference, squares);
      }
      rest = 0.5f * squares;
    }
    // arccos(x) / sqrt(1 - x) on [0, 1], Abramowitz and Stegun 4.4.46.
    float polynomial = -0.0012624911f;
    polynomial = fmaf(polynomial, magnitude, 0.0066700901f);
    polynomial = fmaf(polynomial, magnitude, -0.0170881256f);
    polynomial = fmaf(polynomial, magnitude, 0.0308918810f);
    polynomial = fmaf(polynomial, magnitude, -0.0501743046f);
    polynomial = fmaf(polynomial, magnitude, 0.0889789874f);
    polynomial = fmaf(polynomial, magnitude, -0.2145988016f);
    polynomial = fmaf(polynomial, magnitude, 1.5707963050f);
    const float turn = __fsqrt_rn(rest) * polynomial * 0.318309886183790672f;
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
