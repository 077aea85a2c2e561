// Random directions that features are made of, from Philox, and the cache that keeps the most
// recently used of them, one for the whole process. Seeds come from callers, so the cache has a
// limit in bytes.
//
// Direction i is made of the words i * head_dim and behind them of the stream (seed, layer, head),
// each a standard normal number, so the directions of m are the first m of any larger number.
#pragma once

#include <cstdint>
#include <memory>

#include "ops/common/aligned.h"
#include "ops/common/philox.h"

namespace attenuator::features {

// The random stream of one node's heads.
struct DirectionFamily {
  std::int64_t seed;
  std::uint32_t layer;
  Stream stream;
  int head_dim;
  // Whether the directions of each block of head_dim are made orthogonal, by Gram-Schmidt in their
  // order; each keeps its length, chi(head_dim) distributed and independent of where it points to,
  // so that it is standard normal still. The last block may have fewer: its first ones.
  bool orthogonal;
};

// [head_dim][pitch]: coordinate c of direction i is data[c * pitch + i]. `count` is a multiple of
// the widest register.
struct Directions {
  int count = 0;
  std::int64_t pitch = 0;
  std::int64_t bytes = 0;
  AlignedArray<float> data;
};

// At least `count` directions of a head, from the cache or made now. Thread-safe; what is returned
// stays valid while the caller holds it.
std::shared_ptr<const Directions> GetDirections(const DirectionFamily& family, std::int32_t head,
                                                int count);

}  // namespace attenuator::features
