// Random hyperplanes from Philox, and the cache that keeps the most recently used of them, one for
// the whole process. Seeds come from callers, so the cache has a limit in bytes.
#pragma once

#include <cstdint>
#include <memory>

#include "ops/common/aligned.h"
#include "ops/yoso/cpu/kernel.h"

namespace attenuator::yoso {

// The random stream of one node's heads.
struct PlaneFamily {
  std::int64_t seed;
  std::int32_t layer;
  std::int32_t head_dim;
  std::int32_t hash_bits;
  bool hadamard;
  bool lifted;
};

// What the kernels take as HashSpec::planes: the planes of the first `num_hashes` hashes of a chunk
// of kHashChunk (Gaussian), or the signs of the first `num_hashes` of all hashes (Hadamard).
struct Planes {
  int num_hashes = 0;
  std::int64_t bytes = 0;
  AlignedArray<std::uint8_t> data;
  // Of a lifted family, for each side: twice the planes' coordinate that the norm lift adds.
  AlignedArray<std::int32_t> lift[2];
};

// Writes `num_planes` planes of `dims` coordinates from `first_plane` on as p + 128,
// [num_planes][dims]. Coordinate d of plane hash * hash_bits + bit comes from half-word plane *
// dims + d of the stream.
void GaussianPlanes(const PlaneFamily& family, std::int32_t head, Stream stream, int dims,
                    std::int64_t first_plane, int num_planes, std::uint8_t* planes);

// The planes of at least `num_hashes` hashes of a chunk of a head, from the cache or made now.
// Thread-safe; what is returned stays valid while the caller holds it.
std::shared_ptr<const Planes> GetPlanes(const PlaneFamily& family, std::int32_t head, int chunk,
                                        int num_hashes);

}  // namespace attenuator::yoso
