// Which path a sequence takes, and the two that need no tables.
//
// Counts: for short sequences or one query. Codes of all hashes are kept, and every pair of query
// and key is compared: the number of equal codes is the pair's weight. Keys come in blocks of
// kKeyBlock, so that their codes and packed values are still near while all queries pass by; a
// query's sums live in registers over a block. Work grows with queries x keys x hashes, one
// comparison of bytes each; nothing random is read.
//
// Expectation (num_hashes = 0): the exact value. Tiles of kTileQueries x kTileKeys cosines by a
// float32 product, then the collision probability of each, then the product with the values; an
// output tile is added to in the order of keys. A row's totals are float64, in an order that no
// instruction set changes.
//
// Both are one task for a range of queries, which owns their output rows.
#include "ops/yoso/cpu/paths.h"

#include <algorithm>
#include <cstring>

namespace attenuator::yoso {

Path ChoosePath(const Kernels& kernels, std::int64_t num_queries, std::int64_t num_keys,
                int num_hashes, int hash_bits, int value_dim, bool rounded) {
  if (num_hashes == 0) return Path::kExpectation;
  if (num_queries == 1) return Path::kCounts;
  // As rule.py explains.
  const std::int64_t start = kCountStart + kCountBits * std::clamp(hash_bits - 4, 0, 4);
  const std::int64_t slope = hash_bits <= 6   ? kCountSlopeTo6
                             : hash_bits <= 8 ? kCountSlopeTo8
                                              : kCountSlopeAbove;
  const std::int64_t limit = (start + slope * std::min(num_hashes, kCountHashes)) *
                             (rounded ? kRoundedPercent : kernels.count_percent) *
                             std::min(value_dim + 16, 80) / 8000;
  return num_keys <= limit ? Path::kCounts : Path::kTables;
}

bool RunCountPath(const Kernels& kernels, const HeadJob& job, Scratch& scratch) {
  const std::int64_t num_queries = job.query.count;
  const int chunk_size = ChunkSize(job);
  const std::int64_t blocks = Blocks(job.value_dim);
  const std::int64_t key_rows =
      std::min<std::int64_t>(kKeyBlock, (job.key.count + kKeyTile - 1) / kKeyTile * kKeyTile);
  std::uint8_t* key_codes =
      scratch.Get<std::uint8_t>(Scratch::kKeyCodes, CodeBytes(job, job.num_hashes, key_rows));
  std::uint8_t* query_codes =
      scratch.Get<std::uint8_t>(Scratch::kQueryCodes, CodeBytes(job, job.num_hashes, num_queries));
  float* values = scratch.Get<float>(Scratch::kValues, blocks * key_rows * kBlock);
  std::memset(key_codes, 0, CodeBytes(job, job.num_hashes, key_rows));

  const bool divides = job.normalize == Normalize::kSum;
  std::int32_t* totals =
      divides ? scratch.Get<std::int32_t>(Scratch::kTotals, num_queries) : nullptr;

  const auto hash = [&](Side side, const Rows& rows, std::uint8_t* codes, std::int64_t code_rows) {
    for (int first = 0; first < job.num_hashes; first += chunk_size) {
      const Chunk chunk(job, first, std::min(chunk_size, job.num_hashes - first));
      if (!chunk.Hash(kernels, side, rows, codes + first / kGroup * chunk.GroupBytes(code_rows),
                      code_rows)) {
        return false;
      }
    }
    return true;
  };

  if (!hash(Side::kQuery, job.query, query_codes, num_queries)) return false;
  const HashSpec all{.head_dim = job.family.head_dim,
                     .hash_bits = job.family.hash_bits,
                     .num_hashes = job.num_hashes,
                     .planes = nullptr,
                     .lift_planes = nullptr,
                     .lift = {}};
  for (std::int64_t first = 0; first < job.key.count; first += kKeyBlock) {
    const std::int64_t count = std::min<std::int64_t>(kKeyBlock, job.key.count - first);
    if (!hash(Side::kKey, job.key.slice(first, count), key_codes, key_rows)) return false;
    AddFirstCollisions(job, key_codes, key_rows, query_codes, num_queries, job.num_hashes, first,
                       count);
    if (!kernels.pack_values(job.value.slice(first, count), job.value_dim, values,
                             key_rows * kBlock)) {
      return false;
    }
    kernels.count_and_sum({.spec = all,
                           .key_codes = key_codes,
                           .num_keys = count,
                           .key_code_rows = key_rows,
                           .query_codes = query_codes,
                           .num_queries = num_queries,
                           .query_code_rows = num_queries,
                           .values = values,
                           .value_block_stride = key_rows * kBlock,
                           .columns = job.value_dim,
                           .output = job.output,
                           .stride = job.output_stride,
                           .totals = totals,
                           .accumulate = first > 0});
  }
  float* inverses = divides ? scratch.Get<float>(Scratch::kInverses, num_queries) : nullptr;
  for (std::int64_t i = 0; divides && i < num_queries; ++i) {
    inverses[i] = InverseTotal(static_cast<float>(totals[i]));
  }
  FinishInPlace(kernels, job, 0, num_queries, 1.0f / static_cast<float>(job.num_hashes), inverses);
  return true;
}

// totals[i] += the sum of weights[i][0 .. width), in an order that no instruction set changes.
void AddTotals(const float* weights, std::int64_t stride, std::int64_t rows, std::int64_t width,
               double* totals) {
  constexpr std::int64_t kLanes = 8;
  for (std::int64_t i = 0; i < rows; ++i) {
    const float* row = weights + i * stride;
    double sums[kLanes] = {};
    for (std::int64_t j = 0; j < width; ++j) sums[j % kLanes] += static_cast<double>(row[j]);
    for (const double sum : sums) totals[i] += sum;
  }
}

bool RunExpectationPath(const Kernels& kernels, const HeadJob& job, std::int64_t first,
                        std::int64_t count, Scratch& scratch) {
  constexpr std::int64_t kTileKeys = 128;
  constexpr std::int64_t kTileQueries = 24;
  const std::int64_t blocks = Blocks(job.value_dim);
  const int head_dim = job.family.head_dim;
  const Lift lift{.root = job.lift_root, .side = Side::kQuery};
  const Lift key_lift{.root = job.lift_root, .side = Side::kKey};
  const std::int64_t dims = lift.Dims(head_dim);
  const bool divides = job.normalize == Normalize::kSum;
  const std::int64_t key_rows = std::min(kTileKeys, Blocks(job.key.count) * kBlock);
  float* units = scratch.Get<float>(Scratch::kQueryCodes, count * dims);
  float* keys = scratch.Get<float>(Scratch::kKeyCodes, key_rows * dims);
  float* values = scratch.Get<float>(Scratch::kValues, blocks * key_rows * kBlock);
  float* weights = scratch.Get<float>(Scratch::kWeights, kTileQueries * key_rows);
  if (!kernels.unit_rows(job.query.slice(first, count), head_dim, lift, units, dims)) return false;
  double* totals = divides ? scratch.Get<double>(Scratch::kTotals, count) : nullptr;
  if (divides) std::fill_n(totals, count, 0.0);
  float* output = job.output + first * job.output_stride;
  for (std::int64_t k = 0; k < job.key.count; k += kTileKeys) {
    const std::int64_t width = std::min(kTileKeys, job.key.count - k);
    const std::int64_t padded = Blocks(width) * kBlock;
    if (!kernels.unit_rows_transposed(job.key.slice(k, width), head_dim, key_lift, keys)) {
      return false;
    }
    if (!kernels.pack_values(job.value.slice(k, width), job.value_dim, values, key_rows * kBlock)) {
      return false;
    }
    for (std::int64_t q = 0; q < count; q += kTileQueries) {
      const std::int64_t rows = std::min(kTileQueries, count - q);
      kernels.multiply(units + q * dims, dims, rows, dims, keys, dims * kBlock, padded, weights,
                       key_rows, false);
      for (std::int64_t i = 0; i < rows; ++i) {
        kernels.expected_collisions(units + (q + i) * dims, keys, static_cast<int>(dims),
                                    job.family.hash_bits, padded, weights + i * key_rows);
      }
      if (first + q == 0 && job.first_collisions != nullptr) {
        std::copy_n(weights, width, job.first_collisions + k);
      }
      if (divides) AddTotals(weights, key_rows, rows, width, totals + q);
      kernels.multiply(weights, key_rows, rows, width, values, key_rows * kBlock, job.value_dim,
                       output + q * job.output_stride, job.output_stride, k > 0);
    }
  }
  float* inverses = divides ? scratch.Get<float>(Scratch::kInverses, count) : nullptr;
  for (std::int64_t i = 0; divides && i < count; ++i) {
    inverses[i] = InverseTotal(static_cast<float>(totals[i]));
  }
  FinishInPlace(kernels, job, first, count, 1.0f, inverses);
  return true;
}

}  // namespace attenuator::yoso
