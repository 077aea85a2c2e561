// One head of one sequence of ReformerAttention on the CPU: keys of length 1, buckets, and exact
// attention of a chunk's rows, or of all rows.
#pragma once

#include <cstdint>

#include "ops/common/attention/cpu/paths.h"

namespace attenuator::reformer {

inline constexpr std::int64_t kBlock = 64;  // rows, and keys, that go through the kernel together

// One head of one sequence: row i of x at x + i * x_stride, likewise the others.
struct HeadRows {
  const float* x;  // queries, and keys before their lengths are taken off
  const float* value;
  float* output;
  std::int64_t x_stride, value_stride, output_stride;
  std::int64_t length;
  std::int64_t head_dim, value_dim;
  float scale;           // factor on the scores, as is
  const float* factors;  // [length]: a row times its factor is its key
};

// What rounds so far add up to, by row: the largest score and the sum of exponentials relative to
// it; the sum of values weighted likewise lies in the output.
struct Sums {
  float* largest;  // [length]
  float* sum;      // [length]
};

// One round of hashing: the rows in the order of their buckets, cut into chunks.
struct Round {
  const std::int32_t* order;  // [length]
  std::int64_t chunk_size;
  const float* chunks;  // [rounds, length]: the chunk of each row in this round and those before
  std::int64_t number;  // of rounds before this one
  bool last;            // the output becomes the quotient
};

// Floats of scratch memory, 64-byte aligned, that every kernel takes: what a block of queries has,
// two chunks of keys and values, and the chunks in which all of them lay in `rounds` rounds before.
inline std::int64_t ScratchFloats(const HeadRows& rows, std::int64_t chunk_size,
                                  std::int64_t rounds) {
  const attention::Head head{.head_dim = rows.head_dim, .value_dim = rows.value_dim};
  const std::int64_t keys = 2 * chunk_size < kBlock ? kBlock : 2 * chunk_size;
  return attention::ScratchFloats(head, 1) +
         keys * (PaddedToVectors(rows.head_dim) + PaddedToVectors(rows.value_dim) + rounds) +
         2 * kBlock * rounds;
}

// The kernels of one instruction set.
struct Kernels {
  // factors[i] = 1 / |x_i|, at most 1e12.
  void (*key_factors)(const HeadRows& rows, float* factors, float* scratch);
  // buckets[i] = argmax([x R; -x R]), the first of equal ones, of x rounded to 127 steps of its
  // largest coordinate; `matrix` [half, head_dim] holds whole numbers below 256. All sums are whole
  // numbers below 2^24: exact in float32, in whatever order they are added.
  void (*buckets)(const HeadRows& rows, const float* matrix, std::int64_t half,
                  std::int32_t* buckets, float* scratch);
  // Chunks [begin, end) of a round: each row attends to the rows of its chunk and of the one
  // before, other than itself and those that it has met in rounds before.
  void (*attend_chunks)(const HeadRows& rows, const Round& round, const Sums& sums,
                        std::int64_t begin, std::int64_t end, float* scratch);
  // Output rows [begin, end), each from all rows but itself; `begin` is a multiple of kBlock.
  void (*attend_all)(const HeadRows& rows, std::int64_t begin, std::int64_t end, float* scratch);
};

const Kernels& KernelsAvx2();
const Kernels& KernelsAvx512();

}  // namespace attenuator::reformer
