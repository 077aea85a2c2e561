// The inner loops of the gradient (gradient.h), one set of functions for each instruction set.
// Apart from gradient.h, whose inline functions the files of one instruction set must not
// instantiate.
#pragma once

#include <cstdint>

#include "ops/yoso/cpu/kernel.h"

namespace attenuator::yoso {

// Rows to write, `stride` floats apart.
struct MutableRows {
  float* data;
  std::int64_t stride;

  float* row(std::int64_t i) const { return data + i * stride; }
};

// The codes of the hashes before the present one, row by row: whole multiples of kHashChunk codes,
// of which `count` are there.
struct EarlierHashes {
  const std::uint8_t* query_codes;
  const std::uint8_t* key_codes;
  std::int64_t row_bytes;
  bool wide;  // codes of two bytes
  int count;
};

// One head of one sequence: rows, one over the length of each, or over `lift_root` where that is
// more, at most 1e12, and the sums. A lifted row's added coordinate has no part in any of it: where
// queries have theirs, keys have 0, and the other way round.
struct GradientHead {
  Rows query, key, value, grad;
  const float* query_inverses;
  const float* key_inverses;
  MutableRows by_query, by_key, by_value;
  int head_dim;
  int value_dim;
  int hash_bits;
  // *YOSO: a pair has its true derivative, in the first of the hashes in which it collides, with
  // `softening` added to the square in its root. Otherwise eq. 4's, up to the factor tau / 2m.
  bool collided;
  float softening;
};

// Rows of one side in the order of their codes; those from `order + count` on to `end` come next.
struct BucketSide {
  const std::int32_t* order;
  const std::int32_t* end;
  std::int64_t count;
};

struct GradientKernels {
  std::int64_t (*workspace_floats)(int head_dim, int value_dim);
  // 1 / max(|row|, lift_root, 1e-12) of each row.
  void (*inverse_lengths)(const Rows& rows, int columns, float lift_root, float* inverses);
  // Adds what one hash's bucket contributes, up to constant factors; `workspace` has room for
  // workspace_floats. `earlier` counts where the head is `collided`.
  void (*add_bucket)(const GradientHead& head, const EarlierHashes& earlier,
                     const BucketSide& queries, const BucketSide& keys, float* workspace);
  // From sums over unit rows to factor times the gradient by the rows themselves, in place: 0 where
  // a row is shorter than 1e-12. Rows within `lift_root` are divided by it alone: their direction
  // is free, since the added coordinate keeps their length.
  void (*finish_unit)(const Rows& rows, const float* inverses, int columns, float lift_root,
                      float factor, const MutableRows& sums);
  void (*scale)(std::int64_t rows, int columns, float factor, const MutableRows& sums);
};

// Those of the best instruction set of this machine.
const GradientKernels& CpuGradientKernels();

namespace avx2 {
extern const GradientKernels kGradientKernels;
}
namespace avx512 {
extern const GradientKernels kGradientKernels;
}

}  // namespace attenuator::yoso
