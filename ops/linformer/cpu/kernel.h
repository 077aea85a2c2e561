// One head of LinformerAttention on the CPU: keys and values of a sequence projected to k rows.
//
// A projected row is the key's, padded to whole registers, and behind it the value's: where both
// have the same projection, which is read once, one product gives both. What follows is exact
// attention over k keys, by ops/common/attention.
#pragma once

#include <cstdint>

#include "ops/common/rows.h"

namespace attenuator::linformer {

// Tokens that go through the kernel together: a tile's columns of them stay in the first cache, and
// a row of the projections is read half a KiB at a time.
inline constexpr std::int64_t kBlock = 128;

struct HeadShape {
  std::int64_t head_dim;
  std::int64_t value_dim;

  // Floats in a projected row, and where the value begins in it.
  std::int64_t columns() const { return PaddedToVectors(head_dim) + PaddedToVectors(value_dim); }
  std::int64_t value_column() const { return PaddedToVectors(head_dim); }
  std::int64_t scratch_floats() const { return kBlock * columns(); }
};

// Some rows of a head's projections, a column for each position of a sequence. Both lead to the
// same rows where keys and values have one projection.
struct Projections {
  const float* key;
  const float* value;
  std::int64_t stride;
  std::int64_t rows;
};

// The kernel of one instruction set: projected [projections.rows, columns()] = projections times
// the keys and values of a sequence of `length` tokens, at least 1. `scratch` holds
// scratch_floats(); it and `projected` are 64-byte aligned.
using Project = void (*)(const HeadShape& shape, const Projections& projections, HeadRows key,
                         HeadRows value, std::int64_t length, float* projected, float* scratch);

Project ProjectAvx2();
Project ProjectAvx512();

}  // namespace attenuator::linformer
