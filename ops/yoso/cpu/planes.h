// Random hyperplanes from Philox, and the cache that keeps them: seeds come from callers, so the
// cache holds the most recently used within a limit of bytes, one for the whole process.
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
};

// What the kernels take as HashSpec::planes: for the first `num_hashes` hashes of a chunk of
// kHashChunk (Gaussian), or the signs of the first `num_hashes` hashes of all (Hadamard).
struct Planes {
  int num_hashes = 0;
  std::int64_t bytes = 0;
  AlignedArray<std::uint8_t> data;
};

// int8 planes p + 128 of `num_planes` planes from plane `first_plane` on, [num_planes][head_dim];
// plane (hash * hash_bits + bit), coordinate d is half-word plane * head_dim + d of the stream.
void GaussianPlanes(const PlaneFamily& family, std::int32_t head, std::int64_t first_plane,
                    int num_planes, std::uint8_t* planes);

// At least `num_hashes` hashes of `chunk` of `head`, from the cache or made now. Thread-safe; the
// result stays valid while held.
std::shared_ptr<const Planes> GetPlanes(const PlaneFamily& family, std::int32_t head, int chunk,
                                        int num_hashes);

}  // namespace attenuator::yoso
