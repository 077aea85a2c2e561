// One head of one sequence, and what its three paths share. Portable: it calls the kernels in
// blocks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>

#include "ops/yoso/cpu/kernel.h"
#include "ops/yoso/cpu/planes.h"
#include "ops/yoso/inputs.h"

namespace attenuator::yoso {

struct HeadJob {
  PlaneFamily family;
  std::int32_t head;
  int num_hashes;
  Rows query;
  Rows key;
  Rows value;
  int value_dim;
  float* output;
  std::int64_t output_stride;
  Normalize normalize;
  bool rounded;              // whether tables hold rounded values
  float lift_root;           // 0: no norm lift
  const float* conv_weight;  // this head's taps, or null
  std::int64_t conv_taps;
  // Of each key: in how many hashes its code is that of query 0, or its expected share where
  // num_hashes is 0. Null where nobody asks.
  float* first_collisions;
};

inline std::int64_t Blocks(std::int64_t columns) { return (columns + kBlock - 1) / kBlock; }

// Hashes [first, first + count) of a job, planes included.
struct Chunk {
  Chunk(const HeadJob& job, int first, int count)
      : planes(job.family.hadamard ? GetPlanes(job.family, job.head, 0, job.num_hashes)
                                   : GetPlanes(job.family, job.head, first / kHashChunk, count)),
        hadamard(job.family.hadamard),
        first_hash(first),
        spec{.head_dim = job.family.head_dim,
             .hash_bits = job.family.hash_bits,
             .num_hashes = count,
             .planes = planes->data.get(),
             .lift_planes = nullptr,
             .lift = {.root = job.lift_root, .side = Side::kQuery}} {}

  bool Hash(const Kernels& kernels, Side side, const Rows& rows, void* codes,
            std::int64_t code_rows) const {
    const HashSpec own = SpecOf(side);
    return hadamard ? kernels.hash_hadamard(own, first_hash, rows, codes, code_rows)
                    : kernels.hash_gaussian(&own, 1, rows, codes, code_rows, 0);
  }
  HashSpec SpecOf(Side side) const {
    HashSpec own = spec;
    own.lift.side = side;
    own.lift_planes = planes->lift[static_cast<int>(side)].get();
    return own;
  }
  std::int64_t GroupBytes(std::int64_t code_rows) const {
    return code_rows * kGroup * spec.code_bytes();
  }

  std::shared_ptr<const Planes> planes;
  bool hadamard;
  int first_hash;
  HashSpec spec;
};

// Adds for each of `count` keys in how many of `num_hashes` hashes its code is the query's. A Word
// is a group of codes, the highest bit of each in kHighs; groups lie so many rows apart. Plain
// integers, whole groups at once: any compiler makes vectors of them. Counts are exact in float.
template <class Word, Word kHighs>
void AddCollisions(const unsigned char* keys, std::int64_t key_rows, const unsigned char* query,
                   std::int64_t query_rows, int num_hashes, std::int64_t count, float* collisions) {
  constexpr int kCodeBits = 8 * sizeof(Word) / kGroup;
  constexpr Word kCode = (Word{1} << kCodeBits) - 1;
  constexpr std::int64_t kKeys = 256;
  for (std::int64_t begin = 0; begin < count; begin += kKeys) {
    const std::int64_t size = count - begin < kKeys ? count - begin : kKeys;
    Word sums[kKeys] = {};  // of each hash of a group, side by side: at most 512 / 4 in a byte
    for (int first = 0; first < num_hashes; first += kGroup) {
      const int missing = num_hashes - first < kGroup ? kGroup - (num_hashes - first) : 0;
      const Word compared = kHighs >> (missing * kCodeBits);
      const std::int64_t group = first / kGroup;
      const unsigned char* rows = keys + (group * key_rows + begin) * sizeof(Word);
      Word own;
      std::memcpy(&own, query + group * query_rows * sizeof(Word), sizeof own);
      for (std::int64_t j = 0; j < size; ++j) {
        Word x;
        std::memcpy(&x, rows + j * sizeof(Word), sizeof x);
        x ^= own;
        // The highest bit of a code of `differ` is set where the codes differ: no carry leaves one.
        const Word differ = ((x & ~kHighs) + ~kHighs) | x;
        sums[j] += (~differ & compared) >> (kCodeBits - 1);
      }
    }
    for (std::int64_t j = 0; j < size; ++j) {
      Word sum = 0;
      for (int t = 0; t < kGroup; ++t) sum += sums[j] >> (t * kCodeBits) & kCode;
      collisions[begin + j] += static_cast<float>(static_cast<std::int32_t>(sum));
    }
  }
}

// The same for codes of one or two bytes. `first` is the first key's number.
inline void AddFirstCollisions(const HeadJob& job, const void* key_codes, std::int64_t key_rows,
                               const void* query_codes, std::int64_t query_rows, int num_hashes,
                               std::int64_t first, std::int64_t count) {
  if (job.first_collisions == nullptr) return;
  const auto add = job.family.hash_bits > 8 ? AddCollisions<std::uint64_t, 0x8000800080008000u>
                                            : AddCollisions<std::uint32_t, 0x80808080u>;
  add(static_cast<const unsigned char*>(key_codes), key_rows,
      static_cast<const unsigned char*>(query_codes), query_rows, num_hashes, count,
      job.first_collisions + first);
}

inline int ChunkSize(const HeadJob& job) {
  return job.family.hadamard ? kMaxHadamardChunk : kHashChunk;
}

inline std::int64_t CodeBytes(const HeadJob& job, std::int64_t num_hashes, std::int64_t rows) {
  const std::int64_t groups = (num_hashes + kGroup - 1) / kGroup;
  return groups * kGroup * rows * (job.family.hash_bits > 8 ? 2 : 1);
}

// What a row of sums is multiplied by where its weights add up to `total`.
inline float InverseTotal(float total) { return 1.0f / std::max(total, kSumFloor); }

// Finishes queries [first, first + count) from their sums at `source`, laid out as for
// kernels.finish, into the output. `inverses`: of the totals of these rows' weights, where the job
// divides by them, and else null.
inline void FinishRows(const Kernels& kernels, const HeadJob& job, std::int64_t first,
                       std::int64_t count, float scale, const float* inverses, const float* source,
                       std::int64_t source_stride, std::int64_t block_stride) {
  float* output = job.output + first * job.output_stride;
  kernels.finish(source, source_stride, block_stride, count, job.value_dim, scale, inverses,
                 job.normalize == Normalize::kNorm, output, job.output_stride);
  if (job.conv_weight != nullptr) {
    kernels.convolve(job.value, job.value_dim, job.conv_weight, job.conv_taps, first, count, output,
                     job.output_stride);
  }
}

// The same for sums that are in the output already.
inline void FinishInPlace(const Kernels& kernels, const HeadJob& job, std::int64_t first,
                          std::int64_t count, float scale, const float* inverses) {
  FinishRows(kernels, job, first, count, scale, inverses, job.output + first * job.output_stride,
             job.output_stride, kBlock);
}

}  // namespace attenuator::yoso
