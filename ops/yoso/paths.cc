#include "ops/yoso/paths.h"

#include <algorithm>
#include <cstring>
#include <memory>

namespace attenuator::yoso {
namespace {

enum Purpose { kKeyCodes, kQueryCodes, kValues, kSums, kWeights, kTables };

std::int64_t Blocks(std::int64_t columns) { return (columns + kBlock - 1) / kBlock; }

// Hashes [first, first + count) of a job, planes included.
struct Chunk {
  Chunk(const HeadJob& job, int first, int count)
      : planes(job.family.hadamard ? GetPlanes(job.family, job.head, 0, job.num_hashes)
                                   : GetPlanes(job.family, job.head, first / kHashChunk, count)),
        hadamard(job.family.hadamard),
        first_hash(first),
        spec{job.family.head_dim, job.family.hash_bits, count, planes->data.get()} {}

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

int ChunkSize(const HeadJob& job) { return job.family.hadamard ? kMaxHadamardChunk : kHashChunk; }

std::int64_t CodeBytes(const HeadJob& job, std::int64_t num_hashes, std::int64_t rows) {
  const std::int64_t groups = (num_hashes + kGroup - 1) / kGroup;
  return groups * kGroup * rows * (job.family.hash_bits > 8 ? 2 : 1);
}

// Sums of queries [first, first + count), at `source` as kernels.finish wants them, to the output.
void FinishRows(const Kernels& kernels, const HeadJob& job, std::int64_t first, std::int64_t count,
                float scale, const float* source, std::int64_t source_stride,
                std::int64_t block_stride) {
  float* output = job.output + first * job.output_stride;
  kernels.finish(source, source_stride, block_stride, count, job.value_dim, scale, job.normalize,
                 output, job.output_stride);
  if (job.conv_weight != nullptr) {
    kernels.convolve(job.value, job.value_dim, job.conv_weight, job.conv_taps, first, count, output,
                     job.output_stride);
  }
}

// The same of sums that are in the output already.
void FinishInPlace(const Kernels& kernels, const HeadJob& job, std::int64_t first,
                   std::int64_t count, float scale) {
  FinishRows(kernels, job, first, count, scale, job.output + first * job.output_stride,
             job.output_stride, kBlock);
}

// As many as fit the first-level cache beside the values that stream by.
int TablesPerPass(int hash_bits) { return hash_bits <= 8 ? 4 : hash_bits == 9 ? 2 : 1; }

}  // namespace

float* Scratch::Tables(std::int64_t count, bool zeroed) {
  const float* before = reinterpret_cast<float*>(slots_[kTables].data.get());
  float* tables = Get<float>(kTables, count);
  if (tables != before) zero_floats_ = 0;
  if (!zeroed) {
    zero_floats_ = 0;
  } else if (zero_floats_ < count) {
    std::memset(tables, 0, static_cast<std::size_t>(count) * sizeof(float));
    zero_floats_ = count;
  }
  return tables;
}

Path ChoosePath(const Kernels& kernels, std::int64_t num_queries, std::int64_t num_keys,
                int num_hashes, int hash_bits, int value_dim) {
  if (num_hashes == 0) return Path::kExpectation;
  if (num_queries == 1) return Path::kCounts;
  // About where the two take equal time, measured at value_dim 64, hash_bits 4 to 12 and 4 to 128
  // hashes on Intel and AMD, which differ by a fifth: comparing all pairs pays the longer, the more
  // hashes share its fixed cost and the fewer pairs collide; narrow values make tables cheap.
  const int bits = hash_bits < 4 ? 4 : hash_bits;
  const std::int64_t start = 64 + 28 * std::min(bits - 4, 4);
  const std::int64_t slope = bits <= 6 ? 2 : bits <= 8 ? 6 : 14;
  const std::int64_t limit = (start + slope * std::min(num_hashes, 40)) * kernels.count_percent *
                             std::min(value_dim + 16, 80) / 8000;
  return num_keys <= limit ? Path::kCounts : Path::kTables;
}

bool RunTablePath(const Kernels& kernels, const HeadJob& job, Scratch& scratch) {
  // Values and sums of all columns are packed at once up to this size, which reads and writes each
  // page of the tensors once; beyond it 16 columns at a time bound the memory.
  constexpr std::int64_t kWholeFloats = 1 << 18;
  const std::int64_t num_keys = job.key.count;
  const std::int64_t num_queries = job.query.count;
  const int chunk_size = std::min(ChunkSize(job), job.num_hashes);
  const int hash_bits = job.family.hash_bits;
  const std::int64_t table_floats = static_cast<std::int64_t>(kBlock) << hash_bits;
  const int per_pass = TablesPerPass(hash_bits);
  const bool sparse = num_keys < (std::int64_t{1} << hash_bits);
  const std::int64_t blocks = Blocks(job.value_dim);
  const std::int64_t value_stride = num_keys * kBlock;  // of packed blocks
  const std::int64_t sum_stride = num_queries * kBlock;
  const bool whole = blocks * std::max(value_stride, sum_stride) <= kWholeFloats;
  std::uint8_t* key_codes =
      scratch.Get<std::uint8_t>(kKeyCodes, CodeBytes(job, chunk_size, num_keys));
  std::uint8_t* query_codes =
      scratch.Get<std::uint8_t>(kQueryCodes, CodeBytes(job, chunk_size, num_queries));
  float* all_values = scratch.Get<float>(kValues, (whole ? blocks : 1) * value_stride);
  float* all_sums = scratch.Get<float>(kSums, (whole ? blocks : 1) * sum_stride);
  float* tables = scratch.Tables(table_floats * per_pass, sparse);
  if (whole && !kernels.pack_values(job.value, job.value_dim, all_values, value_stride)) {
    return false;
  }

  for (int first = 0; first < job.num_hashes; first += chunk_size) {
    const Chunk chunk(job, first, std::min(chunk_size, job.num_hashes - first));
    if (!chunk.Hash(kernels, job.key, key_codes, num_keys) ||
        !chunk.Hash(kernels, job.query, query_codes, num_queries)) {
      return false;
    }
    for (std::int64_t b = 0; b < blocks; ++b) {
      const std::int64_t column = b * kBlock;
      const int columns = static_cast<int>(std::min<std::int64_t>(kBlock, job.value_dim - column));
      float* values = all_values + (whole ? b * value_stride : 0);
      float* sums = all_sums + (whole ? b * sum_stride : 0);
      const Rows block{job.value.data + column, job.value.stride, num_keys};
      if (!whole && !kernels.pack_values(block, columns, values, 0)) return false;
      int tables_now = 0;
      for (int t = 0; t < chunk.spec.num_hashes; t += tables_now) {
        tables_now = per_pass;
        while (t + tables_now > chunk.spec.num_hashes) tables_now /= 2;
        const std::int64_t group = t / kGroup;
        const std::int64_t offset = t % kGroup * chunk.spec.code_bytes();
        kernels.run_tables({key_codes + group * chunk.GroupBytes(num_keys) + offset,
                            query_codes + group * chunk.GroupBytes(num_queries) + offset, values,
                            sums, tables, num_keys, num_queries, hash_bits, tables_now,
                            t > 0 || (whole && first > 0), sparse});
      }
      if (!whole) {
        kernels.unpack_sums(sums, 0, num_queries, columns, job.output + column, job.output_stride,
                            first > 0);
      }
    }
  }
  const float scale = 1.0f / static_cast<float>(job.num_hashes);
  if (whole) {
    FinishRows(kernels, job, 0, num_queries, scale, all_sums, kBlock, sum_stride);
  } else {
    FinishInPlace(kernels, job, 0, num_queries, scale);
  }
  return true;
}

bool RunCountPath(const Kernels& kernels, const HeadJob& job, Scratch& scratch) {
  const std::int64_t num_queries = job.query.count;
  const int chunk_size = ChunkSize(job);
  const std::int64_t blocks = Blocks(job.value_dim);
  const std::int64_t key_rows =
      std::min<std::int64_t>(kKeyBlock, (job.key.count + kKeyTile - 1) / kKeyTile * kKeyTile);
  std::uint8_t* key_codes =
      scratch.Get<std::uint8_t>(kKeyCodes, CodeBytes(job, job.num_hashes, key_rows));
  std::uint8_t* query_codes =
      scratch.Get<std::uint8_t>(kQueryCodes, CodeBytes(job, job.num_hashes, num_queries));
  float* values = scratch.Get<float>(kValues, blocks * key_rows * kBlock);
  std::memset(key_codes, 0, CodeBytes(job, job.num_hashes, key_rows));

  const auto hash = [&](const Rows& rows, std::uint8_t* codes, std::int64_t code_rows) {
    for (int first = 0; first < job.num_hashes; first += chunk_size) {
      const Chunk chunk(job, first, std::min(chunk_size, job.num_hashes - first));
      if (!chunk.Hash(kernels, rows, codes + first / kGroup * chunk.GroupBytes(code_rows),
                      code_rows)) {
        return false;
      }
    }
    return true;
  };

  if (!hash(job.query, query_codes, num_queries)) return false;
  const HashSpec all{job.family.head_dim, job.family.hash_bits, job.num_hashes, nullptr};
  for (std::int64_t first = 0; first < job.key.count; first += kKeyBlock) {
    const std::int64_t count = std::min<std::int64_t>(kKeyBlock, job.key.count - first);
    if (!hash(job.key.slice(first, count), key_codes, key_rows)) return false;
    if (!kernels.pack_values(job.value.slice(first, count), job.value_dim, values,
                             key_rows * kBlock)) {
      return false;
    }
    kernels.count_and_sum({all, key_codes, count, key_rows, query_codes, num_queries, num_queries,
                           values, key_rows * kBlock, job.value_dim, job.output, job.output_stride,
                           first > 0});
  }
  FinishInPlace(kernels, job, 0, num_queries, 1.0f / static_cast<float>(job.num_hashes));
  return true;
}

bool RunExpectationPath(const Kernels& kernels, const HeadJob& job, std::int64_t first,
                        std::int64_t count, Scratch& scratch) {
  constexpr std::int64_t kKeyBlock = 128;
  constexpr std::int64_t kQueryTile = 24;
  const std::int64_t blocks = Blocks(job.value_dim);
  const std::int64_t head_dim = job.family.head_dim;
  const std::int64_t key_rows = std::min(kKeyBlock, Blocks(job.key.count) * kBlock);
  float* units = scratch.Get<float>(kQueryCodes, count * head_dim);
  float* keys = scratch.Get<float>(kKeyCodes, key_rows * head_dim);
  float* values = scratch.Get<float>(kValues, blocks * key_rows * kBlock);
  float* weights = scratch.Get<float>(kWeights, kQueryTile * key_rows);
  if (!kernels.unit_rows(job.query.slice(first, count), static_cast<int>(head_dim), units,
                         head_dim)) {
    return false;
  }
  float* output = job.output + first * job.output_stride;
  for (std::int64_t k = 0; k < job.key.count; k += kKeyBlock) {
    const std::int64_t width = std::min(kKeyBlock, job.key.count - k);
    const std::int64_t padded = Blocks(width) * kBlock;
    if (!kernels.unit_rows_transposed(job.key.slice(k, width), static_cast<int>(head_dim), keys)) {
      return false;
    }
    if (!kernels.pack_values(job.value.slice(k, width), job.value_dim, values, key_rows * kBlock)) {
      return false;
    }
    for (std::int64_t q = 0; q < count; q += kQueryTile) {
      const std::int64_t rows = std::min(kQueryTile, count - q);
      kernels.multiply(units + q * head_dim, head_dim, rows, head_dim, keys, head_dim * kBlock,
                       padded, weights, key_rows, false);
      for (std::int64_t i = 0; i < rows; ++i) {
        kernels.expected_collisions(units + (q + i) * head_dim, keys, static_cast<int>(head_dim),
                                    job.family.hash_bits, padded, weights + i * key_rows);
      }
      kernels.multiply(weights, key_rows, rows, width, values, key_rows * kBlock, job.value_dim,
                       output + q * job.output_stride, job.output_stride, k > 0);
    }
  }
  FinishInPlace(kernels, job, first, count, 1.0f);
  return true;
}

}  // namespace attenuator::yoso
