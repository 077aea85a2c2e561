// The gradient of YosoAttention without normalisation (normalize = 0): what training calls through
// the C ABI.
#pragma once

#include <cstdint>

#include "operators.gen.h"
#include "ops/common/context.h"

namespace attenuator::yoso {

// Packed rows of all heads: `row_stride` floats from row to row, `head_stride` from head to head.
struct HeadRows {
  float* data;
  std::int64_t row_stride;
  std::int64_t head_stride;
  std::int64_t columns;  // of a head
};

// Which gradient by queries and keys, see cpu/gradient.h.
struct GradientKind {
  bool collided;
  float softening;
};

struct GradientTensors {
  HeadRows query, key, value, grad;     // read
  HeadRows by_query, by_key, by_value;  // written
  std::int64_t rows;
  TensorView cu_seqlens, num_hashes, seed;
};

// Throws std::invalid_argument where a tensor or an attribute is out of bounds; num_hashes is at
// least 1 here, and of the attributes only num_heads, hash_bits, layer, hash and norm_lift count.
// Sequences with a query or a key that is not finite get NaN.
void RunGradient(const spec::YosoAttention::Attributes& attributes, const GradientKind& kind,
                 const GradientTensors& tensors, ThreadPool& threads);

}  // namespace attenuator::yoso
