// One head of one sequence, and what its three paths share. Portable: it calls the kernels in
// blocks.
#pragma once

#include <cstdint>
#include <memory>

#include "ops/yoso/cpu/kernel.h"
#include "ops/yoso/cpu/planes.h"

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
  bool normalize;
  const float* conv_weight;  // this head's taps, or null
  std::int64_t conv_taps;
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
             .planes = planes->data.get()} {}

  bool Hash(const Kernels& kernels, const Rows& rows, void* codes, std::int64_t code_rows) const {
    return hadamard ? kernels.hash_hadamard(spec, first_hash, rows, codes, code_rows)
                    : kernels.hash_gaussian(spec, rows, codes, code_rows);
  }
  std::int64_t GroupBytes(std::int64_t code_rows) const {
    return code_rows * kGroup * spec.code_bytes();
  }

  std::shared_ptr<const Planes> planes;
  bool hadamard;
  int first_hash;
  HashSpec spec;
};

inline int ChunkSize(const HeadJob& job) {
  return job.family.hadamard ? kMaxHadamardChunk : kHashChunk;
}

inline std::int64_t CodeBytes(const HeadJob& job, std::int64_t num_hashes, std::int64_t rows) {
  const std::int64_t groups = (num_hashes + kGroup - 1) / kGroup;
  return groups * kGroup * rows * (job.family.hash_bits > 8 ? 2 : 1);
}

// Finishes queries [first, first + count) from their sums at `source`, laid out as for
// kernels.finish, into the output.
inline void FinishRows(const Kernels& kernels, const HeadJob& job, std::int64_t first,
                       std::int64_t count, float scale, const float* source,
                       std::int64_t source_stride, std::int64_t block_stride) {
  float* output = job.output + first * job.output_stride;
  kernels.finish(source, source_stride, block_stride, count, job.value_dim, scale, job.normalize,
                 output, job.output_stride);
  if (job.conv_weight != nullptr) {
    kernels.convolve(job.value, job.value_dim, job.conv_weight, job.conv_taps, first, count, output,
                     job.output_stride);
  }
}

// The same for sums that are in the output already.
inline void FinishInPlace(const Kernels& kernels, const HeadJob& job, std::int64_t first,
                          std::int64_t count, float scale) {
  FinishRows(kernels, job, first, count, scale, job.output + first * job.output_stride,
             job.output_stride, kBlock);
}

}  // namespace attenuator::yoso
